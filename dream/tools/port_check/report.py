"""Show a comparison: to people as a table, to programs as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dream.tools import tables
from dream.tools.port_check.match import Setting
from dream.tools.port_check.verdict import (
    ROUNDINGS,
    ArrayGap,
    FirstDifference,
    LayerRow,
    PortReport,
)
from dream.tools.tables import finite, note, screen, table


def show(report: PortReport, console: Console | None = None) -> None:
    """Print everything; stdout, where no console is given."""
    console = console or screen()
    tables.show(console, _table(report), 3)
    console.print()
    for line in lines(report):
        note(console, line, "")
    console.print(Text(conclusion(report), style="bold"))


def text(report: PortReport) -> str:
    """Return the same without colours."""
    console = Console(width=120, file=StringIO(), color_system=None)
    with console.capture() as captured:
        show(report, console)
    return captured.get()


def lines(report: PortReport) -> Iterator[str]:
    """Yield all but the table."""
    for name, (old, new) in report.given.items():
        yield f"{name}: given to the old model as {old}, to the new one as {new}."
    yield f"Loss: old {report.loss[0]:.9g}, new {report.loss[1]:.9g}."
    if report.shaken:
        yield (
            f"{len(report.shaken)} parameters that were all one number got others in both models "
            f"(--no-shake leaves them): {_some(report.shaken)}."
        )
    yield (
        "Differences are relative to the largest number of the array, of gradients to the layer's "
        f"largest. Tolerance: {ROUNDINGS} roundings of the dtype, times the root of the number of "
        "layers passed, or the one given."
    )
    yield from _firsts(report)
    for setting in report.settings:
        shown = " (outputs show whether it matters)" if setting.forward else ""
        both = f"old {setting.old}, new {setting.new}"
        yield f"Setting: {setting.layer}: {setting.name}: {both}{shown}."
    for remark in report.remarks:
        yield f"Note: {remark}"


def _firsts(report: PortReport) -> Iterator[str]:
    """Say what differs first; the reasons are those of the first line."""
    firsts = (("value", report.first_value), ("layer", report.first_layer),
              ("gradient", report.first_gradient))  # fmt: skip
    told = [
        f"First {what} that differs: {_words(report, found)}" for what, found in firsts if found
    ]
    yield from told[:1]
    yield from (f"  {reason}" for reason in report.reasons)
    yield from told[1:]


def _words(report: PortReport, found: FirstDifference) -> str:
    numbers = (
        f"shapes {found.gap.shapes[0]} and {found.gap.shapes[1]}"
        if found.gap.reshaped
        else f"by {found.gap.largest:.1e}, relative {found.gap.relative:.1e}, allowed "
        f"{found.gap.tolerance:.1e}"
    )
    if found.layer is None:
        return f"the output, behind the last layer, {numbers}."
    row = next(row for row in report.rows if row.old.name == found.layer)
    role = f" {found.role}" if found.role else ""
    place = ": what goes in differs already" if found.where == "before" else ""
    return f"{row.old.name} / {row.new.name} ({row.old.kind}){role}, {numbers}{place}."


def _table(report: PortReport) -> Table:
    valued = ["values"] * any(row.values for row in report.rows)
    models = [f"old: {report.backends[0]}", f"new: {report.backends[1]}", "kind"]
    numbers = [*valued, "input", "output", "gradient"]
    shown = table(*models, *numbers, words=models, folded=models)
    for row in report.rows:
        into = _cell(row.given, quiet=row.gave is not None and not row.gave.bad)
        cells = [*[_most(row.values)] * len(valued), into, _cell(row.gave)]
        shown.add_row(row.old.name, row.new.name, row.old.kind, *cells, _most(row.gradients))
    for place, gap in enumerate(report.outputs):
        name = "output" if len(report.outputs) == 1 else f"output {place}"
        shown.add_row(name, name, "", *[""] * len(valued), "", _cell(gap), "")
    return shown


def _most(gaps: Mapping[str, ArrayGap]) -> Text:
    """Return the largest, one that differs before all others."""
    return _cell(max(gaps.values(), key=lambda gap: (gap.bad, gap.relative), default=None))


def _cell(gap: ArrayGap | None, *, quiet: bool = False) -> Text:
    """quiet: a difference is none here, as where only one of two models pads before its layer."""
    if gap is None:
        return Text("")
    text = "shape" if gap.reshaped else f"{gap.relative:.1e}"
    bad = gap.bad and not quiet
    return Text(f"{text} *" if bad else text, style="bold red" if bad else "")


def _some(names: tuple[str, ...], most: int = 6) -> str:
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def conclusion(report: PortReport) -> str:
    """Return the last line."""
    if report.equal:
        return f"Equal: {len(report.rows)} layers, their outputs and their gradients."
    if report.first_value or report.first_layer or report.first_gradient:
        return "The models differ."
    return "The outputs agree, but the settings differ."


Figures = dict[str, Any]


def document(report: PortReport) -> Figures:
    """Return what `--json` writes. A figure that is nan or infinite is null."""
    return {
        "equal": report.equal,
        "backends": list(report.backends),
        "inputs": {name: [list(s) for s in shapes] for name, shapes in report.given.items()},
        "loss": [finite(value) for value in report.loss],
        "first_value": _found_figures(report.first_value),
        "first_layer": _found_figures(report.first_layer),
        "first_gradient": _found_figures(report.first_gradient),
        "reasons": list(report.reasons),
        "settings": [_setting_figures(setting) for setting in report.settings],
        "remarks": list(report.remarks),
        "shaken": list(report.shaken),
        "layers": [_row_figures(row) for row in report.rows],
        "outputs": [_gap_figures(gap) for gap in report.outputs],
    }


def _row_figures(row: LayerRow) -> Figures:
    return {
        "old": row.old.name,
        "new": row.new.name,
        "kind": row.old.kind,
        "values": _gaps_figures(row.values),
        "input": _gap_figures(row.given),
        "output": _gap_figures(row.gave),
        "gradients": _gaps_figures(row.gradients),
    }


def _found_figures(found: FirstDifference | None) -> Figures | None:
    if found is None:
        return None
    return {"layer": found.layer, "where": found.where, "role": found.role or None,
            "difference": _gap_figures(found.gap)}  # fmt: skip


def _setting_figures(setting: Setting) -> Figures:
    return {"layer": setting.layer, "name": setting.name, "old": setting.old, "new": setting.new,
            "counts": not setting.forward}  # fmt: skip


def _gaps_figures(gaps: Mapping[str, ArrayGap]) -> Figures:
    return {role: _gap_figures(gap) for role, gap in gaps.items()}


def _gap_figures(gap: ArrayGap | None) -> Figures | None:
    if gap is None:
        return None
    return {
        "largest": finite(gap.largest),
        "relative": finite(gap.relative),
        "tolerance": gap.tolerance,
        "differs": gap.bad,
        "shapes": [list(shape) for shape in gap.shapes],
    }
