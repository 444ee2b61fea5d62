"""The time of a rank's own work in a Keras step on torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, final

from dream.adapters.keras.update.pace import Clock


@final
class EagerClock(Clock):
    """Operations are over when they return, on a CPU."""

    def __init__(self) -> None:
        self._samples, self._seconds = 0, 0.0
        self._began: tuple[int, float] | None = None

    def begun(self, samples: Any, batch: Any) -> Any:
        self._began = int(samples), time.perf_counter()
        return batch

    def forget(self) -> None:
        self._began = None

    def stop(self, tensors: Sequence[Any]) -> None:
        del tensors
        if self._began is not None:
            samples, began = self._began
            self._began = None
            self._samples += samples
            self._seconds += time.perf_counter() - began

    def taken(self) -> tuple[int, float]:
        found = self._samples, self._seconds
        self._samples, self._seconds = 0, 0.0
        return found
