"""What `dream compare` prints at its end: the table, what it means, what went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from dream.tools.compare import judge, notes, summary, table
from dream.tools.compare.judge import Row
from dream.tools.compare.machine import Machine
from dream.tools.compare.settings import Settings


def show(rows: Sequence[Row], settings: Settings, machine: Machine, console: Console) -> None:
    """Print everything on `console`."""
    for each in table.tables(rows, console, settings.unit):
        console.print(each)
        console.print()
    _say(console, notes.caption(rows, settings))
    _say(console, notes.worth(rows, settings, machine))
    if not settings.script:
        _show_curves(rows, console)
    for row in rows:
        if row.reason:
            style = "dim" if row.verdict.good else "red"
            console.print(Text(f"{row.cell}: {row.verdict}", style=style))
            console.print(Text(_indent(row.reason)))
    for sentence in summary.answers(rows, machine, settings.unit).values():
        console.print(Text(sentence, style="bold"), width=min(console.width, 100))


def _show_curves(rows: Sequence[Row], console: Console) -> None:
    gap = judge.between_frameworks(rows)
    if gap is not None:
        console.print()
        console.print(table.loss_table(judge.loss_curves(rows)))
        console.print()
        _say(console, f"Largest difference between the frameworks' losses: {gap:.1e}.")


def _say(console: Console, sentence: str) -> None:
    if sentence:
        console.print(Text(sentence, style="dim"), width=min(console.width, 100))


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
