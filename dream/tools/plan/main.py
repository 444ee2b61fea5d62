"""`dream plan`: plan, calibrate, measure, show and write.

A strategy's own code costs time too: its step takes longer than its operations, timed by
themselves, and its messages. The rest, read from a small model that is trained under it and shared
out among the operations, is what one costs beside: Python's part of it, autograd's, hooks, and what
waits for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from rich.console import Console

from dream._errors import ConfigurationError, Unsupported
from dream.files.whole import write_json
from dream.strategies.spec import Framework
from dream.tools import frameworks
from dream.tools.model_process import ModelProcess
from dream.tools.plan import hardware, hardware_file, planned, report
from dream.tools.plan.asked import PlanRequest, TrainingSpec
from dream.tools.plan.calibrate import ThisMachine
from dream.tools.plan.forecast import Source, best, forecast, ops_of
from dream.tools.plan.hardware import Hardware, Machine
from dream.tools.plan.measure import RANKS, MeasuredStep, measure, run, slowest
from dream.tools.plan.planned import ModelPlan
from dream.tools.plan.readings import Trial, TrialJob
from dream.tools.plan.sketch import Candidate, ModelFacts, candidates

_BLOCK, _BLOCKS = 20, 3
"""Steps of a block, and how many the quickest is of."""
_SMALL = 1e-6
"""Seconds."""


def read_overheads(
    here: ThisMachine,
    framework: Framework,
    ranks: Iterable[int],
    training: TrainingSpec,
    timeout: float,
) -> None:
    """Have the machine know it, for one rank, and for several where some ranks are. timeout:
    seconds that each run may take."""
    if framework not in frameworks.REFERENCES:
        return
    place = frameworks.REFERENCES[framework]
    most = 2 if max(ranks) > 1 else 1
    asked = PlanRequest(place, most, None, None, replace(training, fused=False))
    with planned.open_model(place, timeout) as held:
        told = planned.build_model(asked, held)
        assert told.batch is not None
        reader = _Reader(here, framework, planned.source_of(held), asked, told.batch, timeout)
        found = candidates(most, most, told.batch, told.kinds)
        for devices in (1, most):
            reader.learn([one for one in found if one.devices == devices])
        for one in found:
            reader.read(one)


def _quickest(trials: Sequence[Trial]) -> float:
    """Return the seconds of a step, in the block that was disturbed least."""
    begins = range(0, _BLOCK * _BLOCKS, _BLOCK)
    return min(
        slowest([replace(one, seconds=one.seconds[begin : begin + _BLOCK]) for one in trials])
        for begin in begins
    )


@final
class _Reader:
    def __init__(
        self,
        here: ThisMachine,
        framework: Framework,
        source: Source,
        asked: PlanRequest,
        batch: int,
        timeout: float,
    ) -> None:
        self._here, self._framework, self._source = here, framework, source
        self._asked, self._batch, self._timeout = asked, batch, timeout

    def learn(self, found: Sequence[Candidate]) -> None:
        """Have the machine time their operations, all in one run."""
        self._here(found[0].devices, ops_of(found, self._source, self._batch))

    def read(self, one: Candidate) -> None:
        try:
            bare, dearer = self._foretold(one, 0.0), self._foretold(one, _SMALL)
        except (Unsupported, ConfigurationError):
            return  # and nor is the user's model foretold so
        job = TrialJob(
            self._asked.place,
            self._asked.training,
            self._batch,
            one.shares,
            _BLOCK * _BLOCKS,
            watched=False,
        )
        trials = run(job, self._framework, one, self._timeout)
        if not isinstance(trials, str):
            slope = (dearer - bare) / _SMALL
            self._here.overheads[one.strategy] = max(0.0, _quickest(trials) - bare) / slope

    def _foretold(self, one: Candidate, beside: float) -> float:
        """Return the seconds of a step where each operation costs so much beside."""
        hardware = self._here(one.devices, ops_of([one], self._source, self._batch))
        told = forecast(
            one,
            self._source,
            self._batch,
            replace(hardware, overheads={}, beside=beside),
            self._asked.training.computes_in,
            None,
        )
        return told.time.step


@final
@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for.

    hardware: a preset's name, a file, or "here". measure: hold the forecasts against runs here.
    timeout: seconds that a step may take.
    """

    hardware: str
    measure: bool
    timeout: float
    json: Path | None


def main(asked: PlanRequest, wish: Wish) -> bool:
    """Plan, show and write. Whether something fits, and what was measured is within bounds."""
    known = _known(wish.hardware)
    with (
        Console(stderr=True).status("Running the model without values ..."),  # on a terminal alone
        planned.open_model(asked.place, wish.timeout) as held,
    ):
        told = planned.build_model(asked, held)
        machine = _machine(known, told.framework, asked, (asked.devices,), wish.timeout)
        plan = planned.plan(asked, machine, held, told)
        runs = _runs(asked, plan, told, held, wish) if wish.measure else []
    report.show(plan, runs)
    if wish.json is not None:
        write_json(wish.json, report.document(plan, runs))
    return best(plan.forecasts) is not None and all(run.within for run in runs)


def _known(name: str) -> Hardware | None:
    """Hardware that need not be measured."""
    if name == "here":
        return None
    return hardware_file.read(name) if hardware_file.is_file(name) else hardware.preset(name)


def _machine(
    known: Hardware | None,
    framework: Framework,
    asked: PlanRequest,
    ranks: Iterable[int],
    timeout: float,
) -> Machine:
    """ranks: that will be asked for, of this machine."""
    if known is not None:
        return lambda *_: known
    here = ThisMachine(framework, asked.training.computes_in, timeout)
    read_overheads(here, framework, ranks, asked.training, timeout)
    return here


def _runs(
    asked: PlanRequest, plan: ModelPlan, told: ModelFacts, held: ModelProcess, wish: Wish
) -> list[MeasuredStep]:
    """Forecast for this machine's own ranks, and measure what comes of it."""
    training = replace(asked.training, fused=False)
    here = replace(asked, training=training)
    planned.build_model(here, held)
    machine = _machine(None, told.framework, here, RANKS, wish.timeout)
    forecasts = planned.forecasts_here(here, plan.batch, machine, held, told)
    return measure(here, plan.batch, told.framework, forecasts, wish.timeout)
