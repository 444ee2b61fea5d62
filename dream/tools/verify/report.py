"""What `dream verify` prints at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dream.tools.verify.cause import Cause, Ruling
from dream.tools.verify.judge import Judged, Verdict
from dream.tools.verify.runs import Ran
from dream.tools.verify.tolerance import NOISE, Tolerance

Causes = Mapping[str, Sequence[Cause]]
"""By strategy."""


def show(rows: Sequence[Judged], single: Ran, causes: Causes, console: Console) -> None:
    """The table, what is allowed, and what went wrong."""
    console.print(_table(rows))
    console.print()
    _say(console, caption(single))
    for row in rows:
        for line in remarks(row):
            _say(console, line)
        if not row.good:
            console.print()
            console.print(Text(f"{row.cell}: {row.verdict}", style="bold red"))
            for line in details(row, causes.get(row.cell.strategy, ())):
                console.print(Text(f"  {line}"), soft_wrap=True)
    console.print()
    console.print(Text(conclusion(rows), style="bold"))


def caption(single: Ran) -> str:
    """What was held against what."""
    first = single.first
    framework = "Keras on " + first.framework if first.keras else first.framework
    how = "then ended" if first.stopped else "which is all that the script trains"
    steps, arrays = len(single.losses), len(single.parameters[0])
    held = f"{arrays} parameters and buffers, on every rank" if arrays else (
        "losses only, for no module with parameters was called"
    )  # fmt: skip
    return (
        f"{framework}; {steps} steps{batches(single)}, {how}; {held}. "
        f"Allowed for {Tolerance(first.dtype, single.updates).text}. Generators that the script "
        f"does not seed start from 0, on rank r from r.{_diverged(single)}"
    )


def batches(single: Ran) -> str:
    """How many are in a step, where there are more than one."""
    most = single.first.batches
    if most == 1:
        return ""
    return f" of {most} batches (steps_per_execution={most}: Keras tells the loss after all)"


def _diverged(single: Ran) -> str:
    """What is equal then is worth little."""
    lost = next((n for n, loss in enumerate(single.losses, 1) if not isfinite(loss)), None)
    if lost is None:
        return ""
    return (
        f" Single's loss is {single.losses[lost - 1]:g} in step {lost}: it diverges, and from "
        "there on equal means no number in both. A lower learning rate would tell more."
    )


def remarks(row: Judged) -> Iterator[str]:
    """What is equal by the rule of rounding noise only."""
    yield from (f"{row.cell}: {said}" for said in rounded(row))


def rounded(row: Judged) -> Iterator[str]:
    """The same, without the row's name."""
    for gap in row.rounding if row.good else ():
        yield (
            f"{gap.name} differs by {gap.size:.1e}, which is rounding: single differs "
            f"from itself by {gap.allowed / NOISE:.1e} where {row.noise.how if row.noise else ''}, "
            f"and {NOISE} times that is allowed."
        )


def details(row: Judged, causes: Sequence[Cause]) -> Iterator[str]:
    """What is wrong with a strategy, and why, as far as it is known."""
    yield from row.reason.splitlines()
    if row.worst is not None and row.worst.bad:
        where = f"{row.worst.name}, by {row.worst.size:.1e} on rank {row.worst.rank}"
        yield f"The parameter that differs most: {where}; allowed {row.worst.allowed:.1e}."
    if row.noise is not None and row.noise.gap:
        yield f"How far single is from itself by rounding alone is not known: {row.noise.gap}."
    if causes:
        yield "Likely causes:"
    for cause in sorted(causes, key=lambda cause: list(_MARKS).index(cause.ruling)):
        yield f"  {_MARKS[cause.ruling]} {cause.name}: {cause.evidence}."
        if cause.ruling is Ruling.IN and cause.advice:
            yield f"      {cause.advice}"
    if causes and all(cause.ruling is Ruling.OUT for cause in causes):
        yield "  None of these. What else it may be: a mean over other things than samples (tokens,"
        yield "  masks), which says so by strategy.weigh(loss, count); random numbers drawn for"
        yield "  each sample as it is read (augmentation), which fall on others."


_MARKS = {Ruling.IN: "yes ", Ruling.OPEN: "open", Ruling.OUT: "no  "}


def conclusion(rows: Sequence[Judged]) -> str:
    bad = [row for row in rows if not row.good]
    names = ", ".join(str(row.cell) for row in bad or rows)
    return f"Not equal to single: {names}." if bad else f"Equal to single: {names}."


def _table(rows: Sequence[Judged]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("strategy", overflow="fold")
    for header in ("replicas", "reduction", "steps", "largest\nloss difference",
                   "largest\nparameter difference", "verdict"):  # fmt: skip
        table.add_column(header, justify="right" if header != "verdict" else "left")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Judged) -> Iterator[Text]:
    ran = row.ran
    yield Text(row.cell.strategy)
    yield Text(str(row.cell.parts))
    yield Text(_reduction(row))
    yield Text("" if ran is None else str(len(ran.losses)))
    yield Text(f"{max(row.losses):.1e}" if row.losses else "")
    yield Text("" if row.largest is None else f"{row.largest:.1e}")
    yield Text(row.verdict, style="green" if row.verdict is Verdict.EQUAL else "bold red")


def _reduction(row: Judged) -> str:
    if row.ran is None or row.cell.parts == 1:
        return ""
    return row.ran.first.reduction if row.cell.processes > 1 else "in process"


def _say(console: Console, sentence: str) -> None:
    console.print(Text(sentence, style="dim"), width=min(console.width, 100))
