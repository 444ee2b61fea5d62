"""A script under a strategy, as `dream run` starts it, with its ranks recorded."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, final

from dream._errors import ConfigurationError, Unsupported, said
from dream.cluster.settings import RECORD
from dream.launch import start
from dream.launch.command import explain
from dream.launch.job import Job
from dream.tools.recording import record
from dream.tools.recording.record import Record, Step
from dream.tools.recording.request import Change, Request
from dream.tools.verify.arguments import Asked
from dream.tools.verify.cells import SINGLE, Cell

if TYPE_CHECKING:
    from dream.tools.recording.record import Arrays


_LINE = re.compile(r'File "([^"]*)", line (\d+)')
"""The first one is the script's own."""


@dataclass(frozen=True)
class Ran:
    """It came to its end. records, parameters: in rank order."""

    records: tuple[Record, ...]
    parameters: tuple[Arrays, ...]
    seconds: float

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def updates(self) -> int:
        """Of the model, on rank 0."""
        return sum(step.batches for step in self.first.steps)

    @cached_property
    def losses(self) -> list[float]:
        """The global mean loss of every step that all ranks took."""
        return [_mean(steps) for steps in zip(*(r.steps for r in self.records), strict=False)]


@dataclass(frozen=True, slots=True)
class Failed:
    """It crashed, or took longer than it may."""

    reason: str

    @property
    def refused(self) -> str:
        """What dream said where it refused the script; empty where it did not."""
        return said(self.reason, Unsupported, ConfigurationError)

    @property
    def brief(self) -> str:
        """The reason, where dream refused the script in its own words and the script's line."""
        line = _LINE.search(self.reason)
        where = f" ({line[1]}, line {line[2]})" if line else ""
        return f"{self.refused}{where}" if self.refused else self.reason


Outcome = Ran | Failed


def _mean(steps: tuple[Step, ...]) -> float:
    """Over the ranks, each loss weighed; what weighs nothing may be nan."""
    weighed = [s.loss if s.weight is None else s.loss * s.weight if s.weight else 0.0
               for s in steps]  # fmt: skip
    return sum(weighed) / len(steps)


@final
class Laboratory:
    """Runs the script. root: a folder for what ranks leave; environ: beside the user's own."""

    def __init__(self, asked: Asked, root: Path, environ: Mapping[str, str] | None = None) -> None:
        self._asked = asked
        self._root = root
        self._environ = dict(environ or {})
        self._singles: dict[tuple[tuple[Change, ...], int], Outcome] = {}

    def single(self, *changes: Change, parts: int = 1) -> Outcome:
        """The script on one device; once for each change."""
        key = (changes, parts)
        if key not in self._singles:
            self._singles[key] = self.run(SINGLE, *changes, parts=parts)
        return self._singles[key]

    def run(self, cell: Cell, *changes: Change, parts: int = 1) -> Outcome:
        """The script under a strategy, anew."""
        folder = Path(mkdtemp(dir=self._root))
        request = Request(folder, self._asked.steps, changes, parts)
        job = Job(
            command=self._asked.command,
            n=cell.processes,
            strategy=cell.strategy,
            show="none",
            timeout=self._asked.timeout,
        )
        started = time.monotonic()
        environ = {**job.environ, **self._environ, RECORD: request.text}
        ended = start.run(replace(job, environ=environ))
        if ended.exit_code != 0:
            return Failed(explain(ended))
        return _collected(folder, cell, time.monotonic() - started)


def _collected(folder: Path, cell: Cell, seconds: float) -> Outcome:
    ranks = range(cell.trained)
    try:
        records = tuple(record.read(folder, rank) for rank in ranks)
        return Ran(records, tuple(record.read_parameters(folder, r) for r in ranks), seconds)
    except FileNotFoundError as error:
        return Failed(
            f"A rank ended without a record: {Path(error.filename).name} is not there. It left by "
            "os._exit, or by exec."
        )
