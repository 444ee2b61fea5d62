"""What is known of a loop while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, final

from dream.data.tracked import Tracked


@final
class Figures:
    """track: what counts the samples of all ranks; None where nobody does, and each batch is taken
    for one of `parts` equal shares."""

    def __init__(self, track: Tracked | None, parts: int) -> None:
        self._track = track
        self._parts = parts
        self._begin = time.monotonic()
        self._told: dict[str, Any] = {}
        self._at = (0, 0)
        self._before: tuple[int, int] | None = None

    def took(self, batch: Any) -> None:
        """A batch has been handed out."""
        samples = _length(batch) * self._parts
        if self._track is None:
            self._at = self._at[0] + 1, self._at[1] + samples
        else:
            state = self._track.state()
            self._at = int(state["batches"]), int(state["samples"])
        if self._before is None:
            self._before = max(self._at[0] - 1, 0), max(self._at[1] - samples, 0)

    def tell(self, figures: Mapping[str, Any]) -> None:
        self._told.update(figures)

    @property
    def batches(self) -> int:
        """Of the pass, those before it was gone on with among them."""
        return self._at[0]

    @property
    def samples_a_second(self) -> float:
        done = self._at[1] - self._before[1] if self._before else 0
        return done / max(time.monotonic() - self._begin, 1e-9)

    def seconds_left(self, total: int | None) -> float | None:
        """None where the end is not known, or nothing was done yet."""
        done = self.batches - self._before[0] if self._before else 0
        if total is None or done <= 0:
            return None
        return (time.monotonic() - self._begin) / done * max(total - self.batches, 0)

    @property
    def numbers(self) -> dict[str, float]:
        """What the loop told of itself; reading a loss may wait for its step."""
        return {name: float(value) for name, value in self._told.items()}


def _length(batch: Any) -> int:
    """Of the first thing in a batch that has one."""
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((n for n in map(_length, batch) if n), 0)
    shape: tuple[int, ...] = tuple(getattr(batch, "shape", ()))
    return int(shape[0]) if shape else 0


def words(figures: Mapping[str, float], samples_a_second: float) -> str:
    """ "loss 0.3120, 5,120 samples/s" """
    told = [f"{name} {value:.4g}" for name, value in figures.items()]
    return ", ".join([*told, f"{samples_a_second:,.0f} samples/s"])


def clock(seconds: float | None) -> str:
    """ "0:01:05" """
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
