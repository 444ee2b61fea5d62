"""How a loop's progress is shown: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.progress import TimeRemainingColumn as Remaining

from dream.progress.figures import Figures, clock, words

BETWEEN_FRAMES = 0.25
BETWEEN_LINES = 10.0


class Display(ABC):
    """seconds: between two looks at the figures, which may have to be waited for."""

    seconds: float

    @abstractmethod
    def show(self, figures: Figures) -> None: ...

    @abstractmethod
    def close(self, figures: Figures) -> None:
        """The loop has ended, or was left."""


@final
class Bar(Display):
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
class Lines(Display):
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
    kind = Bar if console.is_terminal else Lines
    return kind(console, name, total)
