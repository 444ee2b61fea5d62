"""Replicas that have drifted apart are found: every so many steps the ranks compare a digest of
what an optimizer is about to step, and the first difference is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any, final
from weakref import ref
from zlib import crc32

import torch
from torch import nn
from torch.optim import Optimizer

from dream._errors import Desynchronized
from dream._log import logger
from dream.adapters.pytorch.private import foreach_copy_, tables, to_local
from dream.adapters.pytorch.update.precision import MasterWeights
from dream.collectives import Communicator
from dream.update.drift import (
    Pace,
    by_rank,
    differing,
    drifted,
    other_hyperparameters,
    other_steps,
)

_BITS: Mapping[int, torch.dtype] = {
    1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64,
}  # fmt: skip
_LARGEST = 2**62 - 1
_SMALL = 4096
"""Elements of a tensor that costs more by the call than by its size."""
_STAMPS = 509
"""Stamps are below it: their squares of a thousand ranks add up exactly in 32 bits."""
_ALARMS = 8
"""Comparisons out of turn: a message that is rounded on its way gives false alarms."""


@final
class DriftGuard:
    """Compares the replicas of one strategy, and keeps alike the buffers that they change.

    roots: the modules that train. masters: weights that optimizers step in place of theirs. dealt:
    counts the batches that the loop has come by; it must be as many everywhere. The comparisons
    come at an optimizer's first step, its second,
    its fourth, and so on until they cost as little as they are to; and before the next step once
    `hear` has found that learning rates differ, or how many steps there were. alarms: how often it
    has. steps: of all optimizers. kept: where the buffers are that drifted once.
    """

    def __init__(
        self,
        ranks: Communicator,
        roots: Callable[[], Iterable[nn.Module]],
        dealt: Callable[[], int] = int,
        masters: MasterWeights | None = None,
    ) -> None:
        self._ranks, self._roots, self._dealt, self._masters = ranks, roots, dealt, masters
        self._unchecked = ranks.unchecked()
        self.kept: list[tuple[dict[str, Any], str]] = []
        self._told: set[str] = set()
        self._collective = 0.0
        self.rows: Container[object] = ()
        """What is stepped that holds a rank's own rows of a batch."""
        self._optimizers: list[ref[Optimizer]] = []
        self.alarms = self.steps = 0

    def watch(self, optimizer: Optimizer) -> Any:
        """Compare before an optimizer's steps."""
        self._optimizers.append(ref(optimizer))
        return optimizer.register_step_pre_hook(_Countdown(self))

    def stamp(self) -> int:
        """Return a small number for the optimizers' learning rates and steps, and the batch. It
        travels with a backward's gradients, and its square too, so that all ranks know whether
        theirs are alike."""
        rates = [float(self._dealt()), float(self.steps)]
        for each in self._optimizers:
            optimizer = each()
            if optimizer is not None:
                for group in optimizer.param_groups:
                    rate = group.get("lr", 0.0)
                    rates.append(rate if type(rate) is float else _rate(rate))
        return hash(tuple(rates)) % _STAMPS

    def hear(self, stamps: float, squares: float) -> None:
        """Be told the means over the ranks. They are one number's only where all are alike."""
        ranks = self._ranks.world_size
        total = round(stamps * ranks)
        if ranks * round(squares * ranks) != total * total and self.alarms < _ALARMS:
            self.alarms += 1

    def keep(self) -> None:
        """Have the buffers that drifted once hold what rank 0's hold."""
        if self.kept:
            own = [places[name].data for places, name in self.kept]
            foreach_copy_(own, self._ranks.broadcast(own))

    def compare(self, optimizer: Optimizer, pace: Pace, steps: int) -> None:
        """Compare all there is, and have the pace know what that costs. steps: of this optimizer,
        with the one that is about to be taken."""
        step, began = pace.step_seconds(), time.perf_counter()
        stepped = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        parameters = [p for p in stepped if _is_whole(p) and p not in self.rows]
        buffers = self._buffers(optimizer)
        own = [
            crc32(repr(hyperparameters(optimizer)).encode()),
            int(_mixed(digests(parameters))),
            int(_mixed(digests(buffers.values()))),
            self._dealt(),
            steps,
        ]
        cost = time.perf_counter() - began + self._collective
        figures = [*own, *(-each for each in own), int(cost * 1e9), int(step * 1e9)]
        began = time.perf_counter()
        self._ranks.meet("optimizer.step")  # by its name, where a rank left it out
        most = self._unchecked.all_reduce(torch.tensor(figures), "max").tolist()
        self._collective = time.perf_counter() - began
        tells: list[Callable[[Optimizer], None]] = [
            self._tell_batches, partial(self._tell_steps, steps), self._tell_hyperparameters,
            self._tell_parameters, self._tell_buffers,
        ]  # fmt: skip
        for at, tell in zip((3, 4, 0, 1, 2), tells, strict=True):
            if most[at] != -most[at + len(own)]:
                tell(optimizer)
        pace.compared(most[-2] * 1e-9, most[-1] * 1e-9)

    def _buffers(self, optimizer: Optimizer) -> dict[str, torch.Tensor]:
        return {
            f"{name} of {model}": buffer
            for model, root in self._named(optimizer).items()
            for name, buffer in root.named_buffers()
        }

    def _named(self, optimizer: Optimizer) -> dict[str, nn.Module]:
        """The models that an optimizer steps, in the order in which they began to train. Of others
        that nobody uses any more, one rank may have let go and another not."""
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        named: dict[str, nn.Module] = {}
        for root in self._roots():
            own = [*root.parameters()]
            if self._masters is not None:  # which optimizers step in their place
                own += [m for p in own if (m := self._masters.of(p)) is not None]
            if stepped.isdisjoint(map(id, own)):
                continue
            name = type(root).__name__
            same = sum(type(other).__name__ == name for other in named.values())
            named[name if not same else f"{name} {same + 1}"] = root
        return named

    def _tell_batches(self, _: Optimizer) -> None:
        counts = self._ranks.all_gather_object(self._dealt())
        raise Desynchronized(
            "The ranks are training on different batches. Received: gradients of batch "
            f"{by_rank(counts)}. A loss read before its backward covers only this rank's rows: "
            "decisions based on it, such as skipping a batch, must be made equal on all ranks by "
            "strategy.communicator.all_reduce."
        )

    def _tell_steps(self, steps: int, optimizer: Optimizer) -> None:
        raise other_steps(type(optimizer).__name__, self._ranks.all_gather_object(steps))

    def _tell_hyperparameters(self, optimizer: Optimizer) -> None:
        everybody = self._ranks.all_gather_object(hyperparameters(optimizer))
        for index, groups in enumerate(zip(*everybody, strict=False)):
            for name in groups[0]:
                values = [group.get(name) for group in groups]
                if len(set(values)) > 1:
                    where = f"group {index} of {type(optimizer).__name__}"
                    raise other_hyperparameters(name, where, values)

    def _tell_parameters(self, optimizer: Optimizer) -> None:
        names = {
            id(p): f"{name} of {model}"
            for model, root in self._named(optimizer).items()
            for name, p in root.named_parameters()
        }
        parameters = {
            names.get(id(p), f"parameter {index} of group {number}"): p
            for number, group in enumerate(optimizer.param_groups)
            for index, p in enumerate(group["params"])
            if _is_whole(p)
        }
        found = self._differing(parameters)
        if found:
            raise drifted(found, len(parameters))

    def _tell_buffers(self, optimizer: Optimizer) -> None:
        models = self._named(optimizer)
        for name, _ranks in self._differing(self._buffers(optimizer)):
            table, own = _place(models, name)
            if any(table is known and own == other for known, other in self.kept):
                continue
            self.kept.append((table, own))
            if name not in self._told:
                self._told.add(name)
                logger.warning(
                    "%s is a buffer that forward updates from this rank's samples: from now on "
                    "every rank holds rank 0's copy, which has seen only its share",
                    name,
                )
        self.keep()

    def _differing(self, tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, list[int]]]:
        """Name those that are not alike, each with the ranks that are unlike rank 0. What is not a
        number is alike whatever its bits."""
        own = digests(
            [torch.nan_to_num(t) if t.is_floating_point() else t for t in tensors.values()]
        )
        named = dict(zip(tensors, own.tolist(), strict=True))
        return differing(self._ranks.all_gather_object(named))


def _place(models: Mapping[str, nn.Module], named: str) -> tuple[dict[str, Any], str]:
    """Where a buffer is kept: assignments put another tensor there."""
    whole, _, model = named.partition(" of ")
    path, _, name = whole.rpartition(".")
    return tables(models[model].get_submodule(path))[2], name


@final
class _Countdown:
    """The steps of one optimizer until the next comparison."""

    def __init__(self, guard: DriftGuard) -> None:
        self._guard = guard
        self._pace = Pace()
        self._alarms = self._steps = 0

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._steps += 1
        self._guard.steps += 1
        if not self._pace.due() and self._alarms == self._guard.alarms:
            if self._guard.kept:
                self._guard.keep()
            return
        self._alarms = self._guard.alarms
        self._guard.compare(optimizer, self._pace, self._steps)


def _rate(rate: Any) -> float:
    if isinstance(rate, torch.Tensor):  # a device is not waited for
        return float(rate) if rate.device.type == "cpu" else 0.0
    return float(rate)


def hyperparameters(optimizer: Optimizer) -> list[dict[str, float | str]]:
    """What each group of an optimizer steps by."""
    return [
        {name: _plain(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def _is_whole(parameter: torch.Tensor) -> bool:
    """Tell those of which every rank has all from shards, which are of one rank alone."""
    return to_local(parameter) is parameter


def digests(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """A number for the bits of each tensor, shape (tensors,). Small ones of one shape are added up
    in one call, since a model may have thousands."""
    listed = [tensor.data for tensor in tensors]
    alike: dict[object, list[int]] = {}
    for place, tensor in enumerate(listed):
        small = tensor.numel() <= _SMALL
        key = (tensor.shape, tensor.dtype, tensor.device) if small else place
        alike.setdefault(key, []).append(place)
    found = torch.zeros(len(listed), dtype=torch.int64)
    for places in alike.values():
        several = [listed[place] for place in places]
        bits = _bits(torch.stack(several) if len(several) > 1 else several[0].unsqueeze(0))
        inner = [*range(1, bits.dim())]
        sums = bits.sum(inner, dtype=torch.int64) if inner else bits.to(torch.int64)
        found[places] = sums.cpu()
    return found


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(torch.uint8 if tensor.dtype == torch.bool else _BITS[tensor.element_size()])


def _mixed(numbers: torch.Tensor) -> int:
    """One number of several, in their order; small enough for its negative to be one too."""
    places = 2 * torch.arange(len(numbers)) + 1
    return int((numbers * places).sum()) & _LARGEST


def _plain(value: object) -> float | str:
    """Objects count by their types: what they print may hang on where they lie in memory."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, (list, tuple)):
        return repr([_plain(each) for each in value])
    return value if isinstance(value, (int, float, str)) else type(value).__name__
