"""The comparison for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dream.compare.judge import Row, Verdict
from dream.compare.outcome import Finished

_STYLES = {Verdict.ORACLE: "bold", Verdict.EQUAL: "green", Verdict.SKIPPED: "dim"}

Column = tuple[str, Callable[[Row], str]]


def _of(show: Callable[[Finished], str]) -> Callable[[Row], str]:
    return lambda row: show(row.outcome) if isinstance(row.outcome, Finished) else ""


def _maybe(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


_NAMES: list[Column] = [
    ("framework", lambda row: row.cell.framework),
    ("strategy", lambda row: row.cell.strategy),
    ("replicas", lambda row: row.cell.place),
]
_SPEED: list[Column] = [
    ("reduction", lambda row: row.cell.reduction),
    ("samples/s", _of(lambda done: f"{done.first.samples_per_second:,.0f}")),
    ("x single", lambda row: _maybe(row.speed, ".2f")),
    ("start-up s", _of(lambda done: f"{done.start_up:.1f}")),
    ("peak MB", _of(lambda done: f"{done.peak_bytes / 1e6:,.0f}")),
]
_PROOF: list[Column] = [
    ("loss", _of(lambda done: f"{done.first.losses[-1]:.6f}")),
    ("accuracy", _of(lambda done: f"{done.first.accuracy:.4f}")),
    ("difference", lambda row: _maybe(row.difference, ".1e")),
    ("verdict", lambda row: row.verdict),
]
_LEFT = {"single, loss in", "framework", "strategy", "replicas", "reduction", "verdict"}


def tables(rows: Sequence[Row], console: Console) -> list[Table]:
    """One table where the console is wide enough, else the speed and the proof one below the
    other."""
    whole = _table(_NAMES + _SPEED + _PROOF, rows)
    if Measurement.get(console, console.options, whole).maximum <= console.width:
        return [whole]
    return [_table(_NAMES + _SPEED, rows), _table(_NAMES + _PROOF, rows)]


def loss_table(curves: Mapping[str, Sequence[float]]) -> Table:
    """The frameworks' losses, epoch below epoch."""
    table = _empty("single, loss in")
    for epoch in range(1, 1 + max(len(curve) for curve in curves.values())):
        table.add_column(f"epoch {epoch}", justify="right", no_wrap=True)
    for framework, curve in curves.items():
        table.add_row(framework, *(f"{loss:.6f}" for loss in curve))
    return table


def _empty(*headers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, justify="left" if header in _LEFT else "right", no_wrap=True)
    return table


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    table = _empty(*(header for header, _ in columns))
    before = rows[0].cell.framework
    for row in rows:
        if row.cell.framework != before:
            table.add_section()
            before = row.cell.framework
        table.add_row(*(Text(show(row), style=_style(header, row)) for header, show in columns))
    return table


def _style(header: str, row: Row) -> str:
    return _STYLES.get(row.verdict, "bold red") if header == "verdict" else ""
