"""The passes over loaders that a script trains on, and the loops that ask for their batches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, final
from weakref import WeakKeyDictionary, ref

from torch.utils.data import DataLoader

from dream.adapters.pytorch.checkpoint.loop_form import LoopForm, around, form_of, index_of


@final
class Reading:
    """How one loader is read. begun: passes, not counting those of which only a batch is looked at.
    first: whether its last batch was the first of a pass."""

    def __init__(self) -> None:
        self.form = LoopForm(())
        self.begun = 0
        self.first = self._fresh = False
        self._iterator: Any = None

    def begins(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """A pass is asked for, whose batches the script has from this iterator."""
        self._iterator, self._fresh = ref(iterator), True
        return iterator

    def asked(self) -> bool:
        """A batch is asked for. Return whether a pass begins with it."""
        self.first, self._fresh = self._fresh, False
        if self.first:
            self.form = form_of(sys._getframe())
            self.begun += not self.form.by_hand
        return self.first and not self.form.by_hand

    def counts(self) -> list[Any]:
        """Find what of C's hands its batches on: `enumerate` and others, which no frame shows."""
        iterator = None if self._iterator is None else self._iterator()
        return [] if iterator is None else around(iterator, self.form)

    def why_not(self) -> str:
        """Say what keeps the loop from being found again; empty where nothing does."""
        if self.form.why:
            return self.form.why
        found = self.counts()
        others = [type(x).__name__ for x in found if not isinstance(x, enumerate)]
        if others:
            return f"its batches come through {others[0]}, which cannot be set to where it stood"
        return "its batches are counted by several enumerates" if len(found) > 1 else ""

    def index(self) -> int | None:
        """What the `enumerate` around it gives next, where there is one."""
        found = self.counts()
        return index_of(found[0]) if found else None


@final
class Passes:
    """last: the loader that a batch was last asked of."""

    def __init__(self) -> None:
        self._readings: WeakKeyDictionary[DataLoader[Any], Reading] = WeakKeyDictionary()
        self._last: ref[DataLoader[Any]] | None = None

    def of(self, loader: DataLoader[Any]) -> Reading:
        return self._readings.setdefault(loader, Reading())

    def asked(self, loader: DataLoader[Any]) -> bool:
        self._last = ref(loader)
        return self.of(loader).asked()

    @property
    def last(self) -> DataLoader[Any] | None:
        return None if self._last is None else self._last()
