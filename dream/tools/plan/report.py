"""The plan for people."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dream._screen import screen
from dream.launch.environment import cores
from dream.tools.collectives.sizes import show as size
from dream.tools.plan.candidates import KINDS
from dream.tools.plan.forecast import Forecast
from dream.tools.plan.measure import MEMORY, TIME, Measured, on_gloo
from dream.tools.plan.planned import Plan
from dream.tools.plan.scaling import Point

_WIDTH = 100


def show(plan: Plan, runs: Sequence[Measured] = (), console: Console | None = None) -> None:
    """Print everything; stdout, where no console is given."""
    console = console or screen()
    console.print(Text(_headline(plan), style="bold"), soft_wrap=True)
    console.print(_strategies(plan.forecasts))
    console.print()
    if plan.points:
        console.print(Text("Simulated, not measured: as many samples on each device", style="bold"))
        console.print(_points(plan.points))
        console.print()
    if runs:
        console.print(Text("Forecast and measured on this machine", style="bold"))
        console.print(_runs(runs))
        console.print()
    for line in (*notes(plan, several=plan.devices > 1 or bool(runs)), *_about(runs)):
        console.print(Text(line, style="dim"), width=min(console.width, _WIDTH))
    console.print(Text(plan.sentence, style="bold"), width=min(console.width, _WIDTH))


def _headline(plan: Plan) -> str:
    limit = "" if plan.limit is None else f" of {size(plan.limit)}"
    return (
        f"{plan.parameters:,} parameters, {plan.training.optimizer}, {plan.training.precision}, "
        f"global batch {plan.batch}, {plan.devices} x {plan.hardware.name}{limit}"
    )


def notes(plan: Plan, *, several: bool) -> Iterator[str]:
    """What the figures mean and rest on. several: whether they are of several devices too."""
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
    if any(one.candidate.split for one in plan.forecasts):
        yield (
            "Strategies that split the model were rehearsed: their own code ran without values in "
            "a make-believe world of as many ranks."
        )
    for request, reason in plan.left_out.items():
        yield f"Left out, {request}: {reason}"
    missing = [kind for kind in KINDS if kind not in plan.told.kinds]
    if missing and several:
        yield f"Not foretold for {plan.told.flavour} models: {', '.join(missing)}."
    if several:
        yield "Not foretold for any: data_parallel, local_sgd, parameter_server."


def _strategies(forecasts: Sequence[Forecast]) -> Table:
    table = _empty(
        "strategy", "parameters", "gradients", "optimizer", "activations", "peak", "fits", "sent",
        "step", "samples/s",
    )  # fmt: skip
    for one in forecasts:
        memory = one.memory
        sizes = (memory.parameters, memory.gradients, memory.state, memory.activations, memory.peak)
        table.add_row(
            one.candidate.label,
            *map(size, sizes),
            Text("yes") if one.fits else Text("no", style="red"),
            size(one.sent),
            seconds(one.time.step),
            f"{one.samples_per_second:,.4g}",
        )
    return table


def _points(points: Sequence[Point]) -> Table:
    table = _empty("strategy", "devices", "batch", "peak", "sent", "step", "efficiency")
    for point in points:
        taken = point.taken
        if taken is None:
            table.add_row("none fits", f"{point.devices:,}", f"{point.batch:,}", *[""] * 4)
            continue
        table.add_row(
            taken.candidate.label,
            f"{point.devices:,}",
            f"{point.batch:,}",
            size(taken.memory.peak),
            size(taken.sent),
            seconds(taken.time.step),
            f"{point.efficiency:.0%}",
        )
    return table


def _runs(runs: Sequence[Measured]) -> Table:
    table = _empty(
        "strategy", "ranks", "peak", "measured", "error", "given", "measured", "step", "measured",
        "error",
    )  # fmt: skip
    for run in runs:
        one = run.forecast
        begin = (one.candidate.label, str(one.candidate.devices))
        if run.trouble:
            table.add_row(*begin, Text("failed", style="red"))
            continue
        counted = "not counted" if run.given is None else f"{sum(run.given.values()):,}"
        table.add_row(
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
    return table


def _error(error: float, bound: float) -> Text:
    return Text(f"{error:+.1%}", style="red" if abs(error) > bound else "")


def _about(runs: Sequence[Measured]) -> Iterator[str]:
    """What the measured figures are worth."""
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


def _empty(*headers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for header in headers:
        words = header == "strategy"
        table.add_column(header, justify="left" if words else "right", no_wrap=True)
    return table
