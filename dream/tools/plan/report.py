"""Show a plan: to people as tables, to programs as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dream.files.sizes import show as size
from dream.launch.joined.threads import cores
from dream.tools import tables
from dream.tools.plan.forecast import Forecast, best
from dream.tools.plan.goodput import HOUR, Goodput
from dream.tools.plan.measure import MEMORY, TIME, MeasuredStep, on_gloo
from dream.tools.plan.planned import ModelPlan, Point
from dream.tools.plan.sketch import STRATEGY_KINDS
from dream.tools.tables import note, screen, table


def show(
    plan: ModelPlan, runs: Sequence[MeasuredStep] = (), console: Console | None = None
) -> None:
    """Print everything; stdout, where no console is given."""
    console = console or screen()
    note(console, _headline(plan), "bold")
    tables.show(console, _strategies(plan.forecasts))
    console.print()
    if plan.points:
        console.print(Text("Simulated, not measured: as many samples on each device", style="bold"))
        tables.show(console, _points(plan.points), 2)
        console.print()
    if plan.goodputs:
        console.print(Text("Where devices fail", style="bold"))
        tables.show(console, _goodputs(plan.goodputs), 2)
        console.print()
    if runs:
        console.print(Text("Forecast and measured on this machine", style="bold"))
        tables.show(console, _runs(runs), 2)
        console.print()
    for line in (*notes(plan, several=plan.devices > 1 or bool(runs)), *_about(runs)):
        note(console, line)
    note(console, plan.sentence, "bold")


def _headline(plan: ModelPlan) -> str:
    limit = "" if plan.limit is None else f" of {size(plan.limit)}"
    return (
        f"{plan.parameters:,} parameters, {plan.training.optimizer}, {plan.training.precision}, "
        f"{'recompute=True, ' * plan.training.recompute}"
        f"global batch {plan.batch}, {plan.devices} x {plan.hardware.name}{limit}"
    )


def notes(plan: ModelPlan, *, several: bool) -> Iterator[str]:
    """Say what the figures mean and rest on. several: whether they are of several devices too."""
    yield (
        "Per device, for the one that needs most. Activations: what the step holds besides when it "
        "holds most, from a run without values; peak: all together. Sent: bytes that a device "
        "sends in a step, by a ring. Sizes count 1024 bytes to the KB. Loss: " + plan.loss + "."
    )
    yield f"Time is a model: {'; '.join(plan.hardware.sources)}."
    yield (
        "Not in the peak: what an allocator leaves unused between tensors, and what the device's "
        "own libraries take."
    )
    if plan.reliability is not None:
        asked = plan.reliability
        yield (
            f"Goodput: the share of time that is training which lasts, if each device fails once "
            f"in {duration(asked.between)}, at random, a checkpoint stops training for "
            f"{duration(asked.checkpoint)} and a restart takes {duration(asked.restart)} (Young, "
            "CACM 17(9), 1974; Daly, FGCS 22(3), 2006)."
        )
    if any(one.candidate.split for one in plan.forecasts):
        yield (
            "Strategies that split the model were rehearsed: their own code ran without values in "
            "a make-believe world of as many ranks."
        )
    for one in plan.forecasts:
        if one.memory.host:
            yield (
                f"{one.candidate.label}: parameters, gradients and optimizer state of a device, "
                f"{size(one.memory.host)}, lie on its host, whose cores step them."
            )
    for request, reason in plan.left_out.items():
        yield f"Left out, {request}: {reason}"
    missing = [kind for kind in STRATEGY_KINDS if kind not in plan.told.kinds]
    if missing and several:
        yield f"Not foretold for {plan.told.flavour} models: {', '.join(missing)}."
    if several:
        yield "Not foretold for any: data_parallel, local_sgd, parameter_server."


def _strategies(forecasts: Sequence[Forecast]) -> Table:
    shown = table(
        "strategy", "parameters", "gradients", "optimizer", "activations", "peak", "fits", "sent",
        "step", "samples/s", words=["strategy"],
    )  # fmt: skip
    for one in forecasts:
        memory = one.memory
        sizes = (memory.parameters, memory.gradients, memory.state, memory.activations, memory.peak)
        shown.add_row(
            one.candidate.label,
            *map(size, sizes),
            Text("yes") if one.fits else Text("no", style="red"),
            size(one.sent),
            seconds(one.time.step),
            f"{one.samples_per_second:,.4g}",
        )
    return shown


def _points(points: Sequence[Point]) -> Table:
    shown = table(
        "strategy", "devices", "batch", "peak", "sent", "step", "efficiency", words=["strategy"]
    )
    for point in points:
        taken = point.taken
        if taken is None:
            shown.add_row("none fits", f"{point.devices:,}", f"{point.batch:,}", *[""] * 4)
            continue
        shown.add_row(
            taken.candidate.label,
            f"{point.devices:,}",
            f"{point.batch:,}",
            size(taken.memory.peak),
            size(taken.sent),
            seconds(taken.time.step),
            f"{point.efficiency:.0%}",
        )
    return shown


def _goodputs(found: Sequence[tuple[Forecast, Goodput]]) -> Table:
    shown = table(
        "strategy", "devices", "a failure every", "checkpoint every", "goodput", "samples/s left",
        words=["strategy"],
    )  # fmt: skip
    for one, left in found:
        shown.add_row(
            one.candidate.label,
            f"{one.candidate.devices:,}",
            duration(left.between),
            duration(left.every),
            f"{left.share:.1%}",
            f"{one.samples_per_second * left.share:,.4g}",
        )
    return shown


def _runs(runs: Sequence[MeasuredStep]) -> Table:
    shown = table(
        "strategy", "ranks", "peak", "peak\nmeasured", "error", "given", "given,\nmeasured", "step",
        "step\nmeasured", "error", words=["strategy"],
    )  # fmt: skip
    for run in runs:
        one = run.forecast
        begin = (one.candidate.label, str(one.candidate.devices))
        if run.trouble:
            shown.add_row(*begin, Text("failed", style="red"))
            continue
        counted = "not counted" if run.given is None else f"{sum(run.given.values()):,}"
        shown.add_row(
            *begin,
            size(one.memory.peak),
            size(run.peak),
            _error(run.memory_error, MEMORY),
            f"{sum(on_gloo(one.given).values()):,}",
            Text(counted, style="red" if run.bytes_exact is False else ""),
            seconds(one.time.step),
            seconds(run.seconds),
            _error(run.time_error, TIME),
        )
    return shown


def _error(error: float, bound: float) -> Text:
    return Text(f"{error:+.1%}", style="red" if abs(error) > bound else "")


def _about(runs: Sequence[MeasuredStep]) -> Iterator[str]:
    """Say what the measured figures are worth."""
    if not runs:
        return
    yield (
        "Measured: bytes of tensors as the allocator gave them, in the step of several that held "
        "least (what gloo's threads have not let go yet is a matter of time), bytes given to "
        "collectives by the rank that gave most, the median step of the slowest rank. Bounds: "
        f"memory within {MEMORY:.0%}, bytes exact, time within {TIME:.0%} on a machine that "
        "nobody else uses."
    )
    yield f"Foretold times are a model: {'; '.join(runs[-1].forecast.sources)}."
    load, shared = os.getloadavg()[0], cores()
    if load > shared + max(run.forecast.candidate.devices for run in runs):
        yield f"The machine was busy (load {load:.1f}): do not trust the times."
    if any(run.given is None and not run.trouble for run in runs):
        yield ("TensorFlow ran on its BFC allocator, which tells what it gives.")
    for run in runs:
        if run.trouble:
            yield f"{run.forecast.candidate.label}: {run.trouble}"


def seconds(value: float) -> str:
    """`12.3 ms`."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def duration(value: float) -> str:
    """`12.3 min`."""
    for unit, length in (("h", HOUR), ("min", 60.0)):
        if value >= length:
            return f"{value / length:,.3g} {unit}"
    return seconds(value)


Figures = dict[str, object]


def document(plan: ModelPlan, runs: Sequence[MeasuredStep]) -> Figures:
    """Return what `--json` writes. Sizes in bytes, times in seconds. take: what
    `dream.strategy("auto", plan=FILE)` takes; null where nothing fits."""
    taken = best(plan.forecasts)
    take = taken and {
        "strategy": plan.training.request(taken.candidate.request),
        "devices": taken.candidate.devices,
    }
    return {
        "model": {"parameters": plan.parameters, **asdict(plan.told)},
        "training": asdict(plan.training) | {"batch_size": plan.batch},
        "devices": plan.devices,
        "device_memory": plan.limit,
        "hardware": asdict(replace(plan.hardware, known={})),
        "strategies": [_forecast_figures(one) for one in plan.forecasts],
        "left_out": dict(plan.left_out),
        "simulated": [_point_figures(point) for point in plan.points],
        "goodput": [
            {"devices": one.candidate.devices, **asdict(left)} for one, left in plan.goodputs
        ],
        "measured": [_measured_figures(run) for run in runs],
        "take": take,
        "sentence": plan.sentence,
    }


def _forecast_figures(one: Forecast) -> Figures:
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


def _point_figures(point: Point) -> Figures:
    taken = None if point.taken is None else _forecast_figures(point.taken)
    return {
        "devices": point.devices,
        "batch_size": point.batch,
        "efficiency": point.efficiency,
        "taken": taken,
    }


def _measured_figures(run: MeasuredStep) -> Figures:
    if run.trouble:
        return {"forecast": _forecast_figures(run.forecast), "trouble": run.trouble}
    return {
        "forecast": _forecast_figures(run.forecast),
        "peak": run.peak,
        "seconds": run.seconds,
        "given": run.given,
        "memory_error": run.memory_error,
        "time_error": run.time_error,
        "bytes_exact": run.bytes_exact,
    }
