"""`one_copy=True`: where it can be had, the modules that have it, and the step that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from dream._adapter import Plan, Step
from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.pytorch.parallel.one_copy.parameters import OneCopy
from dream.adapters.pytorch.parallel.one_copy.update import PieceUpdate
from dream.collectives import Wire
from dream.shared_memory import Group, groups
from dream.update.update import UpdateOptions

_HONOURED: Mapping[str, tuple[object, ...]] = {
    "accumulate": (), "recompute": (), "memory_budget": (), "sync_batch_norm": (), "strict": (),
}  # fmt: skip
_OF_DDP = {"bucket_mb": None, "bucket_view": True, "static_graph": False, "find_unused": False}


@final
class OneCopyTraining:
    """What a strategy's modules and optimizers share on a host."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._copies: list[OneCopy] = []
        self._updates: list[PieceUpdate] = []

    def take(self, parameters: Sequence[nn.Parameter]) -> OneCopy:
        """Have parameters, alike on all ranks, lie in the ranks' memory."""
        copy = OneCopy(parameters, self._group)
        self._copies.append(copy)
        return copy

    def step(self, optimizer: Optimizer, copy: Callable[[], OneCopy | None], inner: Step) -> Step:
        """The explicit step, whose optimizer updates this rank's part."""
        update = PieceUpdate(optimizer, copy)
        self._updates.append(update)

        @wraps(inner)
        def step(*batch: Any) -> Any:
            with update.stepping():
                return inner(*batch)

        return step

    def loaded(self) -> None:
        """Every rank has written the same weights."""
        for copy in self._copies:
            copy.note()

    def let_go(self) -> None:
        """The block ends: every rank has its own again."""
        for copy in self._copies:
            copy.let_go()
        for update in self._updates:
            update.let_go()
        self._copies, self._updates = [], []


def asked(
    plan: Plan, update_options: UpdateOptions, device: torch.device, wire: Wire | None
) -> OneCopyTraining | None:
    """None where it was not asked for, or there is one rank. Refused where it cannot be had."""
    if not plan.options.get("one_copy"):
        return None
    if wire is None:
        logger.info("one_copy=True: there is one rank, which has one copy anyway")
        return None
    _check(plan, device.type, wire.name)
    update_options.only(_HONOURED, "One copy of the weights")
    for name, default in _OF_DDP.items():
        if plan.options.get(name, default) != default:
            raise Unsupported(
                "With one copy of the weights there are no buckets. Received: "
                f"{name}={plan.options[name]!r}. Remove it."
            )
    return OneCopyTraining(groups.everybody(plan.cluster))


def refuse_mixed(plan: Plan) -> None:
    """Refuse it in a job of two frameworks."""
    if plan.options.get("one_copy"):
        raise _elsewhere("ranks of two frameworks")


def _check(plan: Plan, device: str, reduction: str) -> None:
    place = plan.cluster
    hosts = len(place.hosts)
    if hosts > 1:
        raise _elsewhere(f"{place.world_size} ranks on {hosts} hosts")
    if device != "cpu":
        raise _elsewhere(f"replicas on {device}")
    if reduction != groups.NAME:
        raise _elsewhere(f"reduction={reduction!r}")


def _elsewhere(received: str) -> Unsupported:
    return Unsupported(
        "One copy of the weights is for replicas of torch on the CPU of one host, over "
        f"reduction='shared_memory'. Received: {received}. Remove one_copy."
    )


def refused_loop() -> ConfigurationError:
    return ConfigurationError(
        "With one copy of the weights a loop trains by train_step: its own lines would write the "
        "weights once a rank. Received: a model called in training. Make step = "
        "strategy.train_step(model, loss, optimizer) and call step(x, y), or remove one_copy."
    )
