"""Run a script under a strategy, as `dream run` starts it, with its ranks recorded."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, final

from dream._errors import ConfigurationError, Unsupported, said
from dream.launch import start
from dream.launch.ending import explain
from dream.launch.job import Job
from dream.launch.joined.threads import cores
from dream.strategies import spec as specs
from dream.strategies.spec import FRAMEWORKS, Framework
from dream.tools import placing, record, support
from dream.tools.placing import SINGLE, Placement, place
from dream.tools.record import Change, Record, RecordRequest, Step

if TYPE_CHECKING:
    from dream.tools.record import Arrays


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What `dream verify` is asked for.

    command: what each rank's interpreter runs. strategies: empty for the sensible ones.

    timeout: seconds that one run may take. quick: look for no causes.

    """

    command: tuple[str, ...]
    n: int
    strategies: tuple[str, ...]
    steps: int
    timeout: float
    json: Path | None
    quick: bool = False


def check_requests(requests: Sequence[str], n: int) -> None:
    """Refuse what is no strategy, and what would be single. Raises ConfigurationError."""
    for request in requests:
        for framework in FRAMEWORKS:
            placing.check_room(place(request, n, framework), cores())
        cells = [place(request, n, framework) for framework in FRAMEWORKS]
        if all(cell.name != SINGLE.name and cell.parts < 2 for cell in cells):
            raise ConfigurationError(
                f"One replica is the same as single. Received: --strategy {request}, -n {n}. Pass "
                "-n 2 or more."
            )


def chosen(requests: Sequence[str], framework: Framework, n: int) -> list[Placement]:
    """Place the strategies that were asked for; where none was, those worth holding a script
    under."""
    names = list(requests) or ["mirrored"]
    if not requests and support.horovod_status().serves(framework):
        names.append("horovod")
    cells = [place(name, n, framework) for name in names]
    return [cell for cell in cells if cell.name != SINGLE.name]


def obstacle(cell: Placement, framework: Framework) -> str:
    """Return why the script's framework cannot run it here; empty where it can."""
    spec = specs.find(cell.name)
    reduction = str(specs.parse_request(cell.strategy)[1].get("reduction", "auto"))
    if reduction not in ("auto", *spec.reductions[framework]):
        return f"{framework} has no reduction={reduction!r} under {cell.name!r}"
    found = support.obstacle(spec, framework, reduction)
    return f"{framework} has no {cell.name!r}" if found == "not in this framework" else found


def framework_of(name: str) -> Framework:
    return next(framework for framework in FRAMEWORKS if framework == name)


_LINE = re.compile(r'File "([^"]*)", line (\d+)')
"""The first one is the script's own."""


@dataclass(frozen=True)
class Ran:
    """A run that came to its end. records, parameters: in rank order."""

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
class Broken:
    """A run that crashed, or took longer than it may."""

    reason: str
    timed_out: bool = False

    @property
    def refused(self) -> str:
        """What a strategy said where it refused; empty where it did not."""
        return said(self.reason, Unsupported)

    @property
    def impossible(self) -> str:
        """What dream said where what was asked for cannot be; empty where it can."""
        return said(self.reason, ConfigurationError)

    @property
    def told(self) -> str:
        """What dream said of either kind."""
        return said(self.reason, Unsupported, ConfigurationError)

    @property
    def brief(self) -> str:
        """The reason, where dream refused the script in its own words and the script's line."""
        line = _LINE.search(self.reason)
        where = f" ({line[1]}, line {line[2]})" if line else ""
        return f"{self.told}{where}" if self.told else self.reason


Outcome = Ran | Broken


def _mean(steps: tuple[Step, ...]) -> float:
    """Over the ranks, each loss weighed; what weighs nothing may be nan."""
    weighed = [s.loss if s.weight is None else s.loss * s.weight if s.weight else 0.0
               for s in steps]  # fmt: skip
    return sum(weighed) / len(steps)


@final
class ScriptRunner:
    """Runs the script. root: a folder for what ranks leave; environ: beside the user's own."""

    def __init__(
        self, asked: VerifyRequest, root: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self._asked = asked
        self._root = root
        self._environ = dict(environ or {})
        self._singles: dict[tuple[tuple[Change, ...], int], Outcome] = {}

    def single(self, *changes: Change, parts: int = 1) -> Outcome:
        """Run the script on one device, once for each change."""
        key = (changes, parts)
        if key not in self._singles:
            self._singles[key] = self.run(SINGLE, *changes, parts=parts)
        return self._singles[key]

    def run(self, cell: Placement, *changes: Change, parts: int = 1) -> Outcome:
        """Run the script under a strategy, anew."""
        folder = Path(mkdtemp(dir=self._root))
        request = RecordRequest(folder, self._asked.steps, changes, parts)
        timeout = self._asked.timeout
        return run_recorded(self._asked.command, cell, request, timeout, self._environ)


def run_recorded(
    command: tuple[str, ...],
    place: Placement,
    request: RecordRequest,
    timeout: float,
    environ: Mapping[str, str],
) -> Outcome:
    """Run a script with its ranks recorded. Never raises for what it does. environ: beside the
    user's own."""
    job = Job(command, place.processes, strategy=place.strategy, show="none", timeout=timeout)
    started = time.monotonic()
    ended = start.run(replace(job, environ={**job.environ, **environ, **request.environ}))
    if ended.exit_code != 0:
        return Broken(explain(ended), timed_out=bool(ended.lost))
    return _collected(request.folder, place, time.monotonic() - started)


def _collected(folder: Path, cell: Placement, seconds: float) -> Outcome:
    ranks = range(cell.trained)
    try:
        records = tuple(record.read(folder, rank) for rank in ranks)
        return Ran(records, tuple(record.read_parameters(folder, r) for r in ranks), seconds)
    except FileNotFoundError as error:
        return Broken(
            f"A rank ended without a record: {Path(error.filename).name} is not there. It left by "
            "os._exit, or by exec."
        )
