"""Where a build stands: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod


class Progress(ABC):
    """What a build tells while it runs."""

    @abstractmethod
    def phase(self, name: str) -> None:
        """A new phase begins."""

    @abstractmethod
    def percent(self, value: int) -> None:
        """How much of the compiling is done."""

    @abstractmethod
    def close(self) -> None:
        """Nothing more comes."""


class PlainProgress(Progress):
    """Lines for logs: each phase, then every tenth percent."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._phase = ""
        self._said = 0

    def phase(self, name: str) -> None:
        self._phase, self._said = name, 0
        self._say(name)

    def percent(self, value: int) -> None:
        if value >= self._said + 10:
            self._said = value
            self._say(f"{self._phase} {value} %")

    def close(self) -> None:
        pass

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:4.0f} s] {text}", flush=True)


class BarProgress(Progress):
    """One line that moves."""

    def __init__(self) -> None:
        from rich import progress

        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
        )
        self._task = self._bar.add_task("", total=100)
        self._bar.start()

    def phase(self, name: str) -> None:
        self._bar.update(self._task, description=name)

    def percent(self, value: int) -> None:
        self._bar.update(self._task, completed=value)

    def close(self) -> None:
        self._bar.stop()


def progress() -> Progress:
    """The display that fits where stdout goes."""
    return BarProgress() if sys.stdout.isatty() else PlainProgress()
