"""Parameters that a forward pass writes to: what it writes is lost with what was gathered, or stays
on this rank alone."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn

from dream._errors import Unsupported
from dream.adapters.pytorch.drift import digests
from dream.adapters.pytorch.parallel.fsdp.units import Owned
from dream.adapters.pytorch.private import is_view, recomputing, tree_map

_FIRST = 4
"""Training calls that are looked at; from then on those whose number has doubled."""


@final
class ForwardWrites:
    """Looks at one unit. Takes the place of hooks of a module, whose parameters are gathered by the
    first and are still there at the second."""

    def __init__(self, own: Owned) -> None:
        self._own = own
        self._calls = 0
        self._before: torch.Tensor | None = None

    def runs(self, unit: nn.Module, _: Any) -> None:
        """The unit is about to run."""
        self._before = None
        if not (unit.training and torch.is_grad_enabled()) or recomputing():
            return
        self._calls += 1
        if self._calls > _FIRST and self._calls.bit_count() > 1:
            return
        if any(hasattr(getattr(module, name), "fake_mode") for module, name in self._own):
            return  # a rehearsal: there are no values
        self._before = self._digests()

    def ran(self, *_: Any) -> None:
        """It has run. Raises `Unsupported` where it has written."""
        before, self._before = self._before, None
        if before is None:
            return
        for (module, name), same in zip(
            self._own, (before == self._digests()).tolist(), strict=True
        ):
            if not same:
                raise Unsupported(
                    "A forward pass writes to a parameter that is sharded, and what it writes is "
                    f"this rank's alone. Received: {name} in {type(module).__name__}. Write to it "
                    "between steps, by what is alike on every rank, or choose what holds whole "
                    "parameters and finds replicas that differ: 'mirrored'."
                )

    def _digests(self) -> torch.Tensor:
        return digests([getattr(module, name) for module, name in self._own])


def without_views(_: nn.Module, __: Any, output: Any) -> Any:
    """Clone views: FSDP2 hooks what a unit gives, and changed in place, a view would lose that
    hook, and backward would begin without the unit's parameters."""
    return tree_map(_without_view, output)


def _without_view(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.requires_grad and is_view(value):
        return value.clone()
    return value
