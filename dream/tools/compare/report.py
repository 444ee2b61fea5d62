"""Show a comparison to people: tables, what they mean, what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dream.tools.compare import judge, notes
from dream.tools.compare.cells import SINGLE
from dream.tools.compare.judge import JudgedCell, RowVerdict
from dream.tools.compare.outcome import Finished, RoundSpread, number
from dream.tools.compare.settings import Settings
from dream.tools.machine import Machine
from dream.tools.tables import note, parts, table

_STYLES = {
    RowVerdict.ORACLE: "bold",
    RowVerdict.EQUAL: "green",
    RowVerdict.LEARNS: "green",
    RowVerdict.SKIPPED: "dim",
}

Column = tuple[str, Callable[[JudgedCell], str]]


def _of(show: Callable[[Finished], str]) -> Callable[[JudgedCell], str]:
    return lambda row: show(row.outcome) if isinstance(row.outcome, Finished) else ""


_NAMES: list[Column] = [
    ("framework", lambda row: row.cell.framework),
    ("strategy", lambda row: row.cell.title),
]

_SPEED: list[Column] = [
    ("replicas", lambda row: str(row.cell.replicas)),
    ("reduction", lambda row: row.reduction),
    ("speed", _of(lambda done: number(done.speed.median))),
    ("rounds", _of(lambda done: between(done.speed))),
    ("against\nsingle", lambda row: against_single(row)),
    ("speed kept\nwhen slowed", lambda row: "" if row.kept is None else f"{row.kept:.2f}x"),
    ("start-up\nseconds", _of(lambda done: f"{start_up(done):.1f}")),
    ("peak\nMB", _of(lambda done: f"{done.peak_bytes / 1e6:,.0f}")),
]

_PROOF: list[Column] = [
    ("final\nloss", _of(lambda done: f"{done.first.losses[-1]:.4f}")),
    ("test\nscore", _of(lambda done: _score(done.first.score))),
    ("seconds\nto score", lambda row: seconds_to_score(row)),
    ("staleness\nmean, max", _of(lambda done: staleness(done))),
    ("largest\ndifference", lambda row: "" if row.difference is None else f"{row.difference:.1e}"),
    ("verdict", lambda row: row.verdict),
]

_WORDS = {"framework", "strategy", "reduction", "verdict"}
_FOLDED = {"framework", "strategy"}
"""What gives way on a narrow console; figures never do."""


def against_single(row: JudgedCell) -> str:
    """In times of `single`; empty where the rounds do not tell them apart."""
    if row.speed is None or row.cell.name == SINGLE:
        return ""
    return f"{row.speed:.2f}x" if row.apart else "not told"


def between(speed: RoundSpread) -> str:
    """Return the slowest and the fastest round."""
    return f"{number(speed.low)} to {number(speed.high)}" if number(speed.median) else ""


def _score(score: float | None) -> str:
    return "" if score is None else f"{score:.4f}"


def seconds_to_score(row: JudgedCell) -> str:
    """Until it was as good as `single`, less a point; empty where there is no score."""
    if row.seconds is None:
        return ""
    seconds = row.seconds.median
    return f"{seconds:.2f}" if isfinite(seconds) else "not reached"


def staleness(done: Finished) -> str:
    told = done.staleness
    return "" if told is None else f"{told.mean:.1f}, {told.max}"


def start_up(done: Finished) -> float:
    """Return the median over the rounds."""
    return done.over_rounds(lambda each: each.start_up).median


def tables(rows: Sequence[JudgedCell], console: Console, unit: str = "samples/s") -> list[Table]:
    """One table where the console is wide enough, else the proof and the speed one below the
    other, in as many parts as fit. unit: of speeds."""
    speed = [(unit if header == "speed" else header, show) for header, show in _SPEED]
    whole = parts(console, _table(_NAMES + speed + _PROOF, rows), len(_NAMES))
    if len(whole) == 1:
        return whole
    cut = (parts(console, _table(_NAMES + each, rows), len(_NAMES)) for each in (_PROOF, speed))
    return [part for each in cut for part in each]


def loss_table(curves: Mapping[str, Sequence[float]]) -> Table:
    """Return the frameworks' losses, epoch below epoch."""
    epochs = max(len(curve) for curve in curves.values())
    shown = _empty("framework", *(f"loss of\nepoch {epoch}" for epoch in range(1, epochs + 1)))
    for framework, curve in curves.items():
        shown.add_row(framework, *(f"{loss:.6f}" for loss in curve))
    return shown


def _empty(*headers: str) -> Table:
    return table(*headers, words=_WORDS, folded=_FOLDED, gap=1)


def _table(listed: Sequence[Column], rows: Sequence[JudgedCell]) -> Table:
    """Of the columns in which a row has something."""
    columns = [(header, show) for header, show in listed if any(map(show, rows))]
    shown = _empty(*(header for header, _ in columns))
    before = rows[0].cell.framework
    for row in rows:
        if row.cell.framework != before:
            shown.add_section()
            before = row.cell.framework
        shown.add_row(*(Text(show(row), style=_style(header, row)) for header, show in columns))
    return shown


def _style(header: str, row: JudgedCell) -> str:
    return _STYLES.get(row.verdict, "bold red") if header == "verdict" else ""


def show(
    rows: Sequence[JudgedCell], settings: Settings, machine: Machine, console: Console
) -> None:
    """Print everything on `console`."""
    for each in tables(rows, console, settings.unit):
        console.print(each)
        console.print()
    note(console, notes.caption(rows, settings))
    note(console, notes.worth(rows, settings, machine))
    if not settings.script:
        _show_curves(rows, console)
    for row in rows:
        if row.reason:
            style = "dim" if row.verdict.good else "red"
            console.print(Text(f"{row.cell}: {row.verdict}", style=style))
            console.print(Text(_indent(row.reason)))
    for sentence in notes.answers(rows, machine, settings.unit).values():
        note(console, sentence, "bold")


def _show_curves(rows: Sequence[JudgedCell], console: Console) -> None:
    gap = judge.between_frameworks(rows)
    if gap is not None:
        console.print()
        console.print(loss_table(judge.loss_curves(rows)))
        console.print()
        note(console, f"Largest difference between the frameworks' losses: {gap:.1e}.")


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
