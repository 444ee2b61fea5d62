"""Show how far a loop has come: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.progress import TimeRemainingColumn as Remaining

from dream.data.tracked import Tracked


@final
class Figures:
    """The figures of a loop's progress.

    track: what counts the samples of all ranks; None where nobody does, and each batch is taken
    for one of `parts` equal shares.
    """

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
        """Return None where the end is not known, or nothing was done yet."""
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


BETWEEN_FRAMES = 0.25
BETWEEN_LINES = 10.0


class Display(ABC):
    """Shows a loop's progress somewhere: a terminal, a file, a log.

    seconds: between two looks at the figures, which may have to be waited for.
    """

    seconds: float

    @abstractmethod
    def show(self, figures: Figures) -> None: ...

    @abstractmethod
    def close(self, figures: Figures) -> None:
        """The loop has ended, or was left."""


@final
class BarDisplay(Display):
    seconds = BETWEEN_FRAMES

    def __init__(self, console: Console, name: str, total: int | None) -> None:
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed(),
            Remaining(), TextColumn("{task.fields[told]}"),
        )  # fmt: skip
        self._progress = Progress(*columns, console=console, refresh_per_second=4)
        self._task = self._progress.add_task(name, total=total, told="")
        self._progress.start()

    def show(self, figures: Figures) -> None:
        told = words(figures.numbers, figures.samples_a_second)
        self._progress.update(self._task, completed=figures.batches, told=told)

    def close(self, figures: Figures) -> None:
        self.show(figures)
        self._progress.stop()


@final
class LinesDisplay(Display):
    seconds = BETWEEN_LINES

    def __init__(self, console: Console, name: str, total: int | None) -> None:
        self._console, self._name, self._total = console, name, total
        self._begin = time.monotonic()

    def show(self, figures: Figures) -> None:
        self._line(figures, f"{clock(figures.seconds_left(self._total))} left")

    def close(self, figures: Figures) -> None:
        self._line(figures, f"in {clock(time.monotonic() - self._begin)}")

    def _line(self, figures: Figures, when: str) -> None:
        of = "" if self._total is None else f"/{self._total}"
        told = words(figures.numbers, figures.samples_a_second)
        text = f"{self._name} {figures.batches}{of} batches, {told}, {when}"
        self._console.print(text.strip(), markup=False, highlight=False, soft_wrap=True)


def display(name: str, total: int | None, console: Console | None = None) -> Display:
    """console: standard error by default."""
    console = console or Console(stderr=True)
    kind = BarDisplay if console.is_terminal else LinesDisplay
    return kind(console, name, total)
