"""What `dream compare` prints at its end: the table, what it means, what went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from dream.compare import judge, table
from dream.compare.digits import TRAIN
from dream.compare.judge import Row, Verdict
from dream.compare.settings import Machine, Settings


def show(rows: Sequence[Row], settings: Settings, machine: Machine, console: Console) -> None:
    """Print everything on `console`."""
    for each in table.tables(rows, console):
        console.print(each)
        console.print()
    _say(console, caption(rows, settings))
    _say(console, speed_note(rows, machine))
    _show_curves(rows, console)
    for row in rows:
        if row.reason:
            style = "dim" if row.verdict is Verdict.SKIPPED else "red"
            console.print(Text(f"{row.cell}: {row.verdict}", style=style))
            console.print(Text(_indent(row.reason)))
    console.print(Text(conclusion(rows), style="bold"))


def caption(rows: Sequence[Row], settings: Settings) -> str:
    """How the columns were read."""
    job = settings.job
    last = TRAIN % job.batch_size or job.batch_size
    warm_up = "the first epoch" if job.epochs > 1 else "the first step"
    return (
        f"Digits, MLP 64-32-10, momentum SGD, {job.epochs} epochs, global batch {job.batch_size}, "
        f"the last one of {last}. Every row starts from the same weights and sees the same "
        f"batches. samples/s: without {warm_up}, the warm-up. Start-up: from the command to the "
        "end of the first step. Peak: resident memory of the largest rank. Final loss: mean over "
        "the last epoch. Largest difference: of any parameter from the same framework's single; "
        f"equal means at most {judge.LIMIT:.0e}, and ranks alike to the last bit."
        f"{_mixed_note(rows)}"
    )


def _mixed_note(rows: Sequence[Row]) -> str:
    if not any(row.cell.kind.mixed for row in rows):
        return ""
    limit = f"{judge.MIXED_LIMIT:.0e}"
    return f" Rows of two frameworks are held against the single of rank 0's, at {limit}."


def speed_note(rows: Sequence[Row], machine: Machine) -> str:
    """What the speeds are worth here."""
    note = (
        "This model is tiny: replicas spend their time on talk, not on work, and a run is short: "
        "more --epochs, steadier speeds."
    )
    most = max(row.cell.replicas for row in rows)
    if most > machine.cores:
        note += f" {most} replicas on {machine.cores} cores show what is right, not what is fast."
    if machine.load > machine.cores / 2:
        note += f" The machine was busy (load {machine.load:.1f}): do not trust the speeds."
    return note


def conclusion(rows: Sequence[Row]) -> str:
    ran = [row for row in rows if row.verdict is not Verdict.SKIPPED]
    bad = [row for row in ran if not row.verdict.good]
    skipped = f" {len(rows) - len(ran)} skipped." if len(ran) < len(rows) else ""
    if bad:
        return f"{len(bad)} of {len(ran)} rows broke a law or did not finish.{skipped}"
    return f"All {len(ran)} rows learned the weights of single.{skipped}"


def _show_curves(rows: Sequence[Row], console: Console) -> None:
    gap = judge.between_frameworks(rows)
    if gap is not None:
        console.print()
        console.print(table.loss_table(judge.loss_curves(rows)))
        console.print()
        _say(console, f"Largest difference between the frameworks' losses: {gap:.1e}.")


def _say(console: Console, sentence: str) -> None:
    console.print(Text(sentence, style="dim"), width=min(console.width, 100))


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
