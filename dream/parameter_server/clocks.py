"""How far each worker is: its clock is the number of batches it has done."""

from __future__ import annotations

from typing import final


@final
class Clocks:
    """The clocks of the workers that are there. bound: how far the fastest may lead the slowest;
    None for any distance."""

    def __init__(self, bound: int | None) -> None:
        self._bound = bound
        self._at: dict[int, int] = {}
        self._last = 0
        self.lead = 0
        """The largest lead there has been."""

    def join(self, worker: int) -> None:
        """A worker that comes, or comes back, starts level with the slowest."""
        self._at[worker] = min(self._at.values(), default=self._last)

    def leave(self, worker: int) -> None:
        self._last = max(self._last, self._at.pop(worker, 0))

    def tick(self, worker: int, batches: int = 1) -> None:
        if worker in self._at:
            self._at[worker] += batches
            self.lead = max(self.lead, max(self._at.values()) - min(self._at.values()))

    def tick_all(self) -> None:
        for worker in self._at:
            self._at[worker] += 1

    def may_start(self, worker: int, batches: int = 1) -> bool:
        """Whether the worker, once done with that many more, is still within the bound."""
        if self._bound is None:
            return True
        return self._at[worker] + batches - min(self._at.values()) <= self._bound
