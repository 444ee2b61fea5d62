"""How many parts of a model are gathered ahead of the one that computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from torch.distributed.fsdp import FSDPModule

from dream.adapters.pytorch.parallel.fsdp import private


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
