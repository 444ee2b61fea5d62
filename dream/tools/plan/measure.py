"""Forecasts held against runs on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import final

from dream.launch.ending import explain
from dream.launch.guard import temporary_folder
from dream.strategies import registry
from dream.strategies.spec import Framework
from dream.tools import jobs
from dream.tools.plan import worker
from dream.tools.plan.asked import PlanRequest
from dream.tools.plan.calibrate import REDUCTIONS
from dream.tools.plan.forecast import Forecast
from dream.tools.plan.readings import Trial, TrialJob
from dream.tools.plan.sketch import Candidate

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
class MeasuredStep:
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
        return None if self.given is None else on_gloo(self.forecast.given) == on_gloo(self.given)

    @property
    def within(self) -> bool:
        """Memory and bytes: time is a machine's that nobody else uses."""
        if self.trouble:
            return False
        return abs(self.memory_error) <= MEMORY and self.bytes_exact is not False


def on_gloo(given: Mapping[str, int]) -> dict[str, int]:
    """Return what gloo is given for it, which reduces to everybody where one part each is
    wanted: its own name for that is not always what is noted."""
    found = dict(given)
    parts = found.pop("reduce_scatter", 0)
    if parts:
        found["all_reduce"] = found.get("all_reduce", 0) + parts
    return found


def can_run(framework: Framework, candidate: Candidate) -> bool:
    """Return whether this version has the strategy."""
    name = candidate.request.partition(":")[0]
    return (framework, name) in registry.STRATEGIES


def measure(
    asked: PlanRequest,
    batch: int,
    framework: Framework,
    forecasts: Sequence[Forecast],
    timeout: float,
) -> list[MeasuredStep]:
    return [_measured(asked, batch, framework, one, timeout) for one in forecasts]


def _measured(
    asked: PlanRequest, batch: int, framework: Framework, one: Forecast, timeout: float
) -> MeasuredStep:
    for _ in range(_TRIES):
        job = TrialJob(asked.place, asked.training, batch, one.candidate.shares, _STEPS)
        found = run(job, framework, one.candidate, timeout)
        if not isinstance(found, str) or _KILLED not in found:
            break
    if isinstance(found, str):
        return MeasuredStep(one, 0, 0.0, None, found)
    busiest = max(found, key=lambda trial: sum((trial.given or {}).values()))
    return MeasuredStep(
        one,
        max(trial.peak for trial in found),
        slowest(found),
        busiest.given,
    )


def run(
    job: TrialJob, framework: Framework, candidate: Candidate, timeout: float
) -> list[Trial] | str:
    """Train under a candidate: return what each rank tells, or why they do not."""
    with temporary_folder("dream-plan-") as folder:
        ended = jobs.run(
            worker.__name__,
            folder,
            asdict(job),
            n=candidate.devices,
            frameworks=[framework],
            timeout=timeout,
            words=["train"],
            strategy=request(framework, candidate),
            environ=_TELLING,
        )
        if ended.exit_code != 0:
            return explain(ended)
        return [Trial(**figures) for figures in jobs.answers(folder, candidate.devices)]


def slowest(trials: Sequence[Trial]) -> float:
    """Return seconds: the median step of the rank that takes longest."""
    return max(median(trial.seconds) for trial in trials)


def request(framework: Framework, candidate: Candidate) -> str:
    """Return the strategy on the framework's own collectives, which can be counted."""
    if candidate.kind == "mirrored":
        return f"{candidate.request}:reduction={REDUCTIONS[framework]}"
    if candidate.kind == "sharded":
        return f"{candidate.request},reduction={REDUCTIONS[framework]}"
    return candidate.request
