"""The report for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dream._screen import screen
from dream.tools.port_check.gap import ROUNDINGS, Gap
from dream.tools.port_check.verdict import Found, Report


def show(report: Report, console: Console | None = None) -> None:
    """Print everything; stdout, where no console is given."""
    console = console or screen()
    console.print(_table(report))
    console.print()
    for line in lines(report):
        console.print(Text(line), width=min(console.width, 100))
    console.print(Text(conclusion(report), style="bold"))


def text(report: Report) -> str:
    """The same without colours."""
    console = Console(width=120, file=StringIO(), color_system=None)
    with console.capture() as captured:
        show(report, console)
    return captured.get()


def lines(report: Report) -> Iterator[str]:
    """All but the table."""
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


def _firsts(report: Report) -> Iterator[str]:
    """What differs first; the reasons are those of the first line."""
    firsts = (("value", report.first_value), ("layer", report.first_layer),
              ("gradient", report.first_gradient))  # fmt: skip
    told = [
        f"First {what} that differs: {_words(report, found)}" for what, found in firsts if found
    ]
    yield from told[:1]
    yield from (f"  {reason}" for reason in report.reasons)
    yield from told[1:]


def _words(report: Report, found: Found) -> str:
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


def _table(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    valued = any(row.values for row in report.rows)
    for header in (f"old: {report.backends[0]}", f"new: {report.backends[1]}", "kind"):
        table.add_column(header, overflow="fold")
    for header in [*["values"] * valued, "input", "output", "gradient"]:
        table.add_column(header, justify="right", no_wrap=True)
    for row in report.rows:
        into = _cell(row.given, quiet=row.gave is not None and not row.gave.bad)
        cells = [*[_most(row.values)] * valued, into, _cell(row.gave)]
        table.add_row(row.old.name, row.new.name, row.old.kind, *cells, _most(row.gradients))
    for place, gap in enumerate(report.outputs):
        name = "output" if len(report.outputs) == 1 else f"output {place}"
        table.add_row(name, name, "", *[""] * valued, "", _cell(gap), "")
    return table


def _most(gaps: Mapping[str, Gap]) -> Text:
    """The largest, one that differs before all others."""
    return _cell(max(gaps.values(), key=lambda gap: (gap.bad, gap.relative), default=None))


def _cell(gap: Gap | None, *, quiet: bool = False) -> Text:
    """quiet: a difference is none here, as where only one of two models pads before its layer."""
    if gap is None:
        return Text("")
    text = "shape" if gap.reshaped else f"{gap.relative:.1e}"
    bad = gap.bad and not quiet
    return Text(f"{text} *" if bad else text, style="bold red" if bad else "")


def _some(names: tuple[str, ...], most: int = 6) -> str:
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def conclusion(report: Report) -> str:
    """The last line."""
    if report.equal:
        return f"Equal: {len(report.rows)} layers, their outputs and their gradients."
    if report.first_value or report.first_layer or report.first_gradient:
        return "The models differ."
    return "The outputs agree, but the settings differ."
