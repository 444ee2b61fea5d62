"""A loop over counted items, as a script whose loops were marked runs it: what trains in it is kept
whenever an item is over, and a job that starts again begins with the item that comes next."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, final

from dream._strategy import current
from dream.checkpoint.untouched.training import UntouchedTraining, tell_of_another, training_of

_under_way: list[tuple[object, CountedLoop]] = []
_begun: Counter[str] = Counter()


@final
class CountedLoop:
    """The items of a training loop that was not written for checkpoints, counted as they are taken.

    values: what the loop's function is to assign before its first item.
    """

    def __init__(
        self, items: Iterable[Any], place: str, names: tuple[str, ...], carried: tuple[str, ...],
        declared: tuple[str, ...],
    ) -> None:  # fmt: skip
        """place: the loop's, in the script. For the rest see `VariablesOfALoop`."""
        self.values: dict[str, Any] = {}
        self._items, self._behind = items, 0
        self._training: UntouchedTraining | None = None
        _begun[place] += 1
        strategy = current()
        if strategy is None or any(held is strategy for held, _ in _under_way):
            return
        frame = _frame_of_the_loop()
        if _begun[place] > 1:
            tell_of_another(place, frame.f_lineno)
            return
        self._training = training_of(strategy)
        if self._training is not None:
            variables = (names, carried, declared)
            self._behind, self.values = self._training.begins(place, items, frame, variables)

    def __iter__(self) -> Iterator[Any]:
        if self._training is None:
            yield from self._items
            return
        place = (current(), self)
        _under_way.append(place)
        try:
            for index, item in enumerate(self._items):
                if index > self._behind:
                    self._training.is_between(index, _frame_of_the_loop())
                if index >= self._behind:
                    yield item
        finally:
            _under_way.remove(place)
            self._training.is_over()


def _frame_of_the_loop() -> FrameType:
    """The script's, which has called into this file."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame


def is_under_way() -> bool:
    """Whether a loop of the block may have its training kept."""
    strategy = current()
    return any(held is strategy for held, _ in _under_way)
