"""Which parts of a model are gathered together, and what is gathered for a part, and how
many parts ahead of the one that computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, final
from zlib import crc32

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dream._errors import Desynchronized
from dream.adapters.pytorch.parallel.fsdp import private
from dream.adapters.pytorch.parallel.fsdp.parameter_reads import read_by_name
from dream.adapters.pytorch.private import own_parameters, recomputing
from dream.collectives import Communicator
from dream.update.drift import by_rank

_STAMPS = 509
"""Stamps are below it, so that sums of their squares are exact."""
_MET = 8
"""Backward passes before which ranks meet at every unit."""
_TOGETHER = (
    "Ranks gather a model's parameters together, part by part: call the same parts whatever a "
    "rank's rows are, or use 'mirrored'"
)
Owned = list[tuple[nn.Module, str]]


def units_of(module: nn.Module) -> list[nn.Module]:
    """Find the parts that are gathered by themselves: blocks of repeated layers where there are
    any, else the direct children. What is in none of them is gathered with the whole.

    A part that shares a parameter with another one is in none, since it is needed in both places,
    nor is one whose parameter another's forward pass names.
    """
    found = _repeated(module) or _children(module)
    within = {id(part) for unit in found for part in unit.modules()}
    read = {
        each for part in module.modules() if id(part) not in within for each in read_by_name(part)
    }
    return [
        unit
        for unit in found
        if not (_shares(unit, found, module) or any(id(p) in read for p in unit.parameters()))
    ]


def callable_itself(module: nn.Module) -> bool:
    """Tell whether the module has a forward pass: lists and dicts of modules have none."""
    return type(module).forward is not nn.Module.forward


def _repeated(module: nn.Module) -> list[nn.Module]:
    """Find the blocks in lists and sequences of which at least two have layers of a kind."""
    found: list[nn.Module] = []
    for child in module.children():
        blocks = [part for part in child.children() if _has_parameters(part)]
        kinds = Counter(type(part) for part in blocks if any(part.children()))
        listed = isinstance(child, (nn.ModuleList, nn.Sequential))
        if listed and any(count > 1 for count in kinds.values()):
            found += blocks
        elif not (listed or _has_own(child)):
            found += _repeated(child)
    return found


def _children(module: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in module.children():
        if _has_parameters(child):
            found += [child] if callable_itself(child) else _children(child)
    return found


def _shares(unit: nn.Module, units: list[nn.Module], module: nn.Module) -> bool:
    own = {id(parameter) for parameter in unit.parameters()}
    inside = {id(part) for part in unit.modules()}
    outside = (part for part in module.modules() if id(part) not in inside)
    return any(id(p) in own for part in outside for p in part.parameters(recurse=False)) or any(
        unit is not other and id(unit) in {id(part) for part in other.modules()} for other in units
    )


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _has_own(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def gathers_of(part: nn.Module, units: Sequence[FSDPModule]) -> list[FSDPModule]:
    """Find the units around a part that hold parameters of its own modules: those are gathered as
    the unit is called, and not as the part is."""
    inside = {id(each) for each in part.modules()}
    return [
        unit
        for unit in units
        if id(unit) not in inside
        and isinstance(unit, nn.Module)
        and any(id(each) in inside for each in _managed(unit, unit))
    ]


def unsharded(module: nn.Module) -> Owned:
    """List (module, name) of each parameter that FSDP2 would shard with the module."""
    return [(part, name) for part in _managed(module, module) for name, _ in own_parameters(part)]


def make_whole(own: Owned) -> None:
    """Gather what copies of sharded modules hold: FSDP2 begins with whole parameters."""
    for module, name in own:
        parameter = getattr(module, name)
        if isinstance(parameter, DTensor):
            whole = nn.Parameter(parameter.full_tensor(), requires_grad=parameter.requires_grad)
            setattr(module, name, whole)


def _managed(module: nn.Module, top: nn.Module) -> list[nn.Module]:
    if module is not top and isinstance(module, FSDPModule):
        return []
    return [module, *(part for child in module.children() for part in _managed(child, top))]


@final
class UnitOrder:
    """Which units have run since the last backward pass: as many messages of other units of the
    same sizes would be taken for theirs, so that ranks which call others train on a mixture. Those
    of other sizes end a rank within gloo, and where one rank calls more, it waits for ever: so the
    ranks meet before each unit of the first passes."""

    def __init__(self, ranks: Communicator) -> None:
        self._ranks = ranks
        self._runs: list[str] = []
        self._last = ""
        self._passes, self._met = 0, False

    def gathers(self, name: str, *_: Any) -> None:
        """Meet the others before a unit is gathered to train.

        Raises:
            Desynchronized: another rank is about to gather another one, or to do something else.
        """
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or recomputing():
            return
        if self._passes < _MET:
            self._met = True
            self._meet("forward", part=name)

    def before(self, backward: Callable[..., None]) -> Callable[..., None]:
        """Have backward passes begin with such a meeting, where units have run."""

        @wraps(backward)
        def met(*args: Any, **kwargs: Any) -> None:
            if self._met and not recomputing():
                self._met = False
                self._meet("backward")
            backward(*args, **kwargs)

        return met

    def _meet(self, name: str, **arguments: object) -> None:
        try:
            self._ranks.meet(name, **arguments)
        except Desynchronized as error:
            raise Desynchronized(f"{error} {_TOGETHER}.") from error

    def ran(self, name: str) -> None:
        self._runs.append(name)

    def stamp(self) -> int:
        """Return a small number for them, which travels with the backward pass."""
        self._last = ", ".join(self._runs)
        self._runs.clear()
        self._passes += 1
        return crc32(self._last.encode()) % _STAMPS

    def hear(self, stamps: float, squares: float) -> None:
        """Be told the means over the ranks, which are one number's only where all are alike.

        Raises:
            Desynchronized: ranks have called other parts of the model, or in another order.
        """
        ranks = self._ranks.world_size
        total = round(stamps * ranks)
        if ranks * round(squares * ranks) == total * total:
            return
        everybody = self._ranks.all_gather_object(self._last)
        if len({*everybody}) > 1:
            raise Desynchronized(
                "The ranks call different parts of a model whose parameters they gather together, "
                f"so that they get each other's. Received: {by_rank(everybody)}. Call the same "
                "parts in the same order on every rank, whatever its rows are, or use 'mirrored'."
            )


@final
class Prefetch:
    """Has each part gather so many of those behind it, in the order in which they ran until a
    first backward pass. Until then, and without a number, FSDP2 goes its own way."""

    def __init__(self, ahead: object) -> None:
        """ahead: the option, a number or None."""
        self._ahead = ahead if isinstance(ahead, int) else None
        self._order: dict[FSDPModule, None] | None = None if ahead is None else {}

    def ran(self, unit: FSDPModule) -> None:
        if self._order is not None:
            self._order[unit] = None

    def backward_came(self, whole: object) -> None:
        """Settle it. whole: the module that forward begins with and backward, too: it is the first
        that gives a gradient on."""
        if not self._order:
            return
        units = [unit for unit in self._order if unit is not whole]
        if len(units) < len(self._order):
            assert isinstance(whole, FSDPModule)
            self._set(whole, units, units[::-1])
        for at, unit in enumerate(units):
            self._set(unit, units[at + 1 :], units[:at][::-1])
        self._order = None

    def _set(self, unit: FSDPModule, forward: list[FSDPModule], backward: list[FSDPModule]) -> None:
        unit.set_modules_to_forward_prefetch(forward[: self._ahead])
        # itself is there by then; an empty list would be FSDP2's own choice, the next one
        unit.set_modules_to_backward_prefetch(backward[: self._ahead] or [unit])

    def forward_came(self, units: Iterable[FSDPModule]) -> None:
        """Let go of what no part came for, as where this call left a part out: it would be taken
        for the part's parameters after the next step."""
        if self._ahead:
            private.drop_gathers(units)
