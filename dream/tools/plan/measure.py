"""Forecasts held against runs on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import final

from dream import _registry
from dream._spec import Framework
from dream.launch import start
from dream.launch.command import explain
from dream.launch.guard import temporary_folder
from dream.launch.job import Job as LaunchJob
from dream.tools.plan import rank
from dream.tools.plan.asked import Asked
from dream.tools.plan.calibrate import REDUCTIONS
from dream.tools.plan.candidates import Candidate
from dream.tools.plan.forecast import Forecast
from dream.tools.plan.trial import Job, Trial

RANKS = (1, 2, 4)
MEMORY, TIME = 0.10, 0.25
"""How far a forecast may be off, as a share of what was measured. Bytes are exact."""
_STEPS = 20
_TRIES, _KILLED = 3, "was killed by SIG"
"""The frameworks' profilers take a rank along now and then, as they stop: it is begun again."""
_TELLING = {"TF_CPU_ALLOCATOR_USE_BFC": "1"}
"""TensorFlow's only allocator for CPUs that keeps an account."""


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """A forecast and what came of it. peak: bytes, of the rank that had most; seconds: median of
    the slowest rank; given: as in Trial. trouble: why nothing was measured, else "".
    """

    forecast: Forecast
    peak: int
    seconds: float
    given: dict[str, int] | None
    trouble: str = ""

    @property
    def memory_error(self) -> float:
        return self.forecast.memory.peak / self.peak - 1

    @property
    def time_error(self) -> float:
        return self.forecast.time.step / self.seconds - 1

    @property
    def bytes_exact(self) -> bool | None:
        """None where they were not counted."""
        return None if self.given is None else on_gloo(self.forecast.given) == self.given

    @property
    def within(self) -> bool:
        """Memory and bytes: time is a machine's that nobody else uses."""
        if self.trouble:
            return False
        return abs(self.memory_error) <= MEMORY and self.bytes_exact is not False


def on_gloo(given: Mapping[str, int]) -> dict[str, int]:
    """What gloo is given for it, which reduces to everybody where one part each is wanted."""
    found = dict(given)
    parts = found.pop("reduce_scatter", 0)
    if parts:
        found["all_reduce"] = found.get("all_reduce", 0) + parts
    return found


def can_run(framework: Framework, candidate: Candidate) -> bool:
    """Whether this version has the strategy."""
    name = candidate.request.partition(":")[0]
    return (framework, name) in _registry.STRATEGIES


def measure(
    asked: Asked, batch: int, framework: Framework, forecasts: Sequence[Forecast], timeout: float
) -> list[Measured]:
    return [_measured(asked, batch, framework, one, timeout) for one in forecasts]


def _measured(
    asked: Asked, batch: int, framework: Framework, one: Forecast, timeout: float
) -> Measured:
    for _ in range(_TRIES):
        job = Job(asked.place, asked.training, batch, one.candidate.shares, _STEPS)
        found = run(job, framework, one.candidate, timeout)
        if not isinstance(found, str) or _KILLED not in found:
            break
    if isinstance(found, str):
        return Measured(one, 0, 0.0, None, found)
    busiest = max(found, key=lambda trial: sum((trial.given or {}).values()))
    return Measured(
        one,
        max(trial.peak for trial in found),
        slowest(found),
        busiest.given,
    )


def run(job: Job, framework: Framework, candidate: Candidate, timeout: float) -> list[Trial] | str:
    """What each rank tells, or why they do not."""
    with temporary_folder("dream-plan-") as folder:
        return _run(job, framework, candidate, folder, timeout)


def slowest(trials: Sequence[Trial]) -> float:
    """Seconds: the median step of the rank that takes longest."""
    return max(median(trial.seconds) for trial in trials)


def _run(
    job: Job, framework: Framework, candidate: Candidate, folder: Path, timeout: float
) -> list[Trial] | str:
    (folder / rank.JOB).write_text(json.dumps(asdict(job)))
    made = LaunchJob(
        command=("module", rank.__name__, str(folder)),
        n=candidate.devices,
        strategy=request(framework, candidate),
        frameworks=(framework,),
        show="none",
        timeout=timeout,
    )
    ended = start.run(replace(made, environ={**made.environ, **_TELLING}))
    if ended.exit_code != 0:
        return explain(ended)
    files = (folder / f"{number}.json" for number in range(candidate.devices))
    return [Trial(**json.loads(file.read_text())) for file in files]


def request(framework: Framework, candidate: Candidate) -> str:
    """The strategy on the framework's own collectives, which can be counted."""
    if candidate.kind == "mirrored":
        return f"{candidate.request}:reduction={REDUCTIONS[framework]}"
    if candidate.kind == "sharded":
        return f"{candidate.request},reduction={REDUCTIONS[framework]}"
    return candidate.request
