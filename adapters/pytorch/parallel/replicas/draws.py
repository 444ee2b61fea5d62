"""Random draws of the copies of a module in one process: those of one device, which draws for the
whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from torch import nn

from dream._log import logger
from dream.adapters.pytorch.data.reading.rows import rows_of
from dream.adapters.pytorch.randomness.calls import DROPS, patches
from dream.adapters.pytorch.randomness.current import (
    RowMemory,
    State,
    current,
    same,
    set_state,
    state,
)
from dream.adapters.pytorch.randomness.rows import Rows

Functions = Sequence[Callable[..., Any]]
Apply = Callable[[Functions, Sequence[Any], int], list[Any]]
"""Runs functions on their parts, at the same time; with the place of the first."""
_WATCHED = 3
"""Calls that go in turn, to see whether they draw: the look at its rows, and two more."""


@final
class PartDraws:
    """What is known of one module. Copies that draw run one after the other: they have one
    generator, which each finds as the whole batch did.

    drops: it has dropout. unknown: an operation drew that gives rows to nobody.
    """

    def __init__(self, module: nn.Module) -> None:
        self._name = type(module).__name__
        self._memory = RowMemory()
        self._calls = 0
        self.drops = any(isinstance(m, DROPS) and m.p > 0 for m in module.modules())
        self._drew = self.drops
        self.unknown = False

    def apply(self, apply: Apply, functions: Functions, parts: Sequence[Any]) -> list[Any]:
        """Run functions on their parts."""
        before = state()
        if self._drew or self._calls < _WATCHED:
            outputs = self._in_turn(before, apply, functions, parts)
        else:
            outputs = apply(functions, parts, 0)
        self._calls += 1
        if same(before, state()):
            current.last = None  # there is nothing that a backward pass could draw again
        if not self._drew and not same(before, state()):
            self._drew = True
            if self._calls > _WATCHED:
                logger.info(
                    "a call of %s draws random numbers, which its first calls did not: in this "
                    "call they differ from those of one device", self._name,
                )  # fmt: skip
        return outputs

    def _in_turn(
        self, before: State, apply: Apply, functions: Functions, parts: Sequence[Any]
    ) -> list[Any]:
        outputs: list[Any] = []
        counts = [rows_of(part) or 0 for part in parts]
        with patches.standing():  # the block may be over
            for index, (function, part) in enumerate(zip(functions, parts, strict=True)):
                first = sum(counts[:index])
                rows = Rows(slice(first, first + counts[index]), counts[index], sum(counts))
                outputs += apply([partial(self._drawn, rows, before, function)], [part], index)
        current.divided = True
        return outputs

    def _drawn(self, rows: Rows, before: State, function: Callable[..., Any], *part: Any) -> Any:
        set_state(before)
        current.memory, current.call, current.last = self._memory, rows, rows
        current.watch()
        try:
            return function(*part)
        finally:
            current.call = None
            self.unknown |= current.strayed()
