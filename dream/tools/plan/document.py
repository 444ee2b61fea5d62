"""The plan for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from dream.tools.plan.forecast import Forecast
from dream.tools.plan.measure import Measured
from dream.tools.plan.planned import Plan
from dream.tools.plan.scaling import Point

Figures = dict[str, object]


def build(plan: Plan, runs: Sequence[Measured]) -> Figures:
    """What `--json` writes. Sizes in bytes, times in seconds."""
    return {
        "model": {"parameters": plan.parameters, **asdict(plan.told)},
        "training": asdict(plan.training) | {"batch_size": plan.batch},
        "devices": plan.devices,
        "device_memory": plan.limit,
        "hardware": asdict(replace(plan.hardware, known={})),
        "strategies": [_forecast(one) for one in plan.forecasts],
        "left_out": dict(plan.left_out),
        "simulated": [_point(point) for point in plan.points],
        "measured": [_measured(run) for run in runs],
        "sentence": plan.sentence,
    }


def _forecast(one: Forecast) -> Figures:
    return {
        "strategy": one.candidate.request,
        "label": one.candidate.label,
        "devices": one.candidate.devices,
        "memory": asdict(one.memory),
        "fits": one.fits,
        "bytes_sent": one.sent,
        "seconds": one.time.step,
        "compute_seconds": one.time.compute,
        "communication_seconds": one.time.communication,
        "idle_seconds": one.time.idle,
        "samples_per_second": one.samples_per_second,
    }


def _point(point: Point) -> Figures:
    taken = None if point.taken is None else _forecast(point.taken)
    return {
        "devices": point.devices,
        "batch_size": point.batch,
        "efficiency": point.efficiency,
        "taken": taken,
    }


def _measured(run: Measured) -> Figures:
    if run.trouble:
        return {"forecast": _forecast(run.forecast), "trouble": run.trouble}
    return {
        "forecast": _forecast(run.forecast),
        "peak": run.peak,
        "seconds": run.seconds,
        "given": run.given,
        "memory_error": run.memory_error,
        "time_error": run.time_error,
        "bytes_exact": run.bytes_exact,
    }
