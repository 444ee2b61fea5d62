"""Replicas that step alone: what each has of its own, kept, and gone on with by as many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from dream.checkpoint import content
from dream.checkpoint.content import CheckpointContent, OptimizerState, named_in
from dream.checkpoint.storage.allotment import Wanted
from dream.checkpoint.storage.array_files import StoredArrays
from dream.collectives import Communicator
from dream.update.local_sgd import Schedule
from dream.update.outer import OuterSteps

_OUTER = ("begun", "velocity")


class Replicas(Protocol):
    """What a strategy has of them."""

    @property
    def ranks(self) -> Communicator: ...
    @property
    def schedule(self) -> Schedule: ...
    def together(self, tensor: Any) -> Any:
        """Return what a tensor would be where they came together, which they do not. Every rank
        calls it."""

    def go_on(self, schedule: Mapping[str, Any]) -> None:
        """Take up where a checkpoint's stood, whose states were set."""


def kept(
    own: Replicas, held: Mapping[str, Any], copied: Callable[[Any], Any],
    random: Mapping[str, Any], wanted: Wanted,
) -> content.Replicas:  # fmt: skip
    """Return what this rank writes of them.

    held: its own tensors, by what follows RANK/ in a name. copied: a tensor as an array.
    """
    arrays: dict[str, Any] = {}
    if own.schedule.apart:
        sizes = own.ranks.all_gather_object({name: _size(x) for name, x in held.items()})
        for rank, of_rank in enumerate(sizes):
            for name, size in of_rank.items():
                if wanted(f"{rank}/{name}", size, rank):
                    arrays[f"{rank}/{name}"] = copied(held[name])
    if isinstance(own.schedule, OuterSteps):
        for what, values in zip(_OUTER, own.schedule.common(), strict=True):
            for place, value in enumerate(values):
                if wanted(f"{what}/{place}", _size(value), 0):
                    arrays[f"{what}/{place}"] = copied(value)
    everyone = own.ranks.all_gather_object(random)
    return content.Replicas(own.ranks.world_size, own.schedule.state(), everyone, arrays)


def own_of(own: Replicas, found: CheckpointContent) -> CheckpointContent | None:
    """Return what this rank goes on from; None where the checkpoint is not of as many. Raises
    where they came together in another way."""
    saved = found.replicas
    if saved is None or saved.count != own.ranks.world_size:
        return None
    own.schedule.check(saved.schedule)
    rank = own.ranks.rank
    random = saved.random[rank]
    if not any(name.startswith(f"{rank}/") for name in saved.arrays):
        return replace(found, random=random)
    assert isinstance(saved.arrays, StoredArrays)
    mine = saved.arrays.of(f"{rank}/model/"), saved.arrays.of(f"{rank}/optimizer/")
    models = {key: mine[0].of(named_in(key, "")) for key in found.models}
    optimizers = {
        key: OptimizerState(each.kind, mine[1].of(named_in(key, "")), each.numbers, each.groups)
        for key, each in found.optimizers.items()
    }
    return replace(found, models=models, optimizers=optimizers, random=random)


def go_on(own: Replicas, saved: content.Replicas, made: Callable[[Any], Any]) -> None:
    """made: of an array what a framework computes with."""
    own.go_on(saved.schedule)
    if isinstance(own.schedule, OuterSteps):
        begun, velocity = ([made(each) for each in _in_order(saved, what)] for what in _OUTER)
        if begun:
            own.schedule.load_common(begun, velocity)


def _in_order(saved: content.Replicas, what: str) -> list[Any]:
    count = sum(name.startswith(f"{what}/") for name in saved.arrays)
    return [saved.arrays[f"{what}/{place}"] for place in range(count)]


def _size(tensor: Any) -> int:
    """Return the bytes of a tensor of torch's, of Keras's variable, or of an array."""
    return int(tensor.nbytes)
