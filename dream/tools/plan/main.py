"""The whole plan, from the names to the last line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from dream._spec import Framework
from dream.files.whole import write_json
from dream.tools.plan import document, overheads, planned, presets, report
from dream.tools.plan.asked import Asked
from dream.tools.plan.calibrate import Here
from dream.tools.plan.choice import best
from dream.tools.plan.hardware import Hardware, Machine
from dream.tools.plan.measure import RANKS, Measured, measure
from dream.tools.plan.planned import Plan
from dream.tools.plan.sketch import Told
from dream.tools.port_check.process import Bench


@final
@dataclass(frozen=True, slots=True)
class Wish:
    """hardware: a preset's name, or "here". measure: hold the forecasts against runs here.
    timeout: seconds that a step may take."""

    hardware: str
    measure: bool
    timeout: float
    json: Path | None


def main(asked: Asked, wish: Wish) -> bool:
    """Plan, show and write. Whether something fits, and what was measured is within bounds."""
    known = None if wish.hardware == "here" else presets.find(wish.hardware)
    with planned.room(asked.place, wish.timeout) as held:
        told = planned.told(asked, held)
        machine = _machine(known, told.framework, asked, (asked.devices,), wish.timeout)
        plan = planned.plan(asked, machine, held, told)
        runs = _runs(asked, plan, told, held, wish) if wish.measure else []
    report.show(plan, runs)
    if wish.json is not None:
        write_json(wish.json, document.build(plan, runs))
    return best(plan.forecasts) is not None and all(run.within for run in runs)


def _machine(
    known: Hardware | None,
    framework: Framework,
    asked: Asked,
    ranks: Iterable[int],
    timeout: float,
) -> Machine:
    """ranks: that will be asked for, of this machine."""
    if known is not None:
        return lambda *_: known
    here = Here(framework, asked.training.computes_in, timeout)
    overheads.read(here, framework, ranks, asked.training, timeout)
    return here


def _runs(asked: Asked, plan: Plan, told: Told, held: Bench, wish: Wish) -> list[Measured]:
    """Forecasts for this machine's own ranks, and what came of them."""
    training = replace(asked.training, fused=False)
    here = replace(asked, training=training)
    planned.told(here, held)
    machine = _machine(None, told.framework, here, RANKS, wish.timeout)
    forecasts = planned.forecasts_here(here, plan.batch, machine, held, told)
    return measure(here, plan.batch, told.framework, forecasts, wish.timeout)
