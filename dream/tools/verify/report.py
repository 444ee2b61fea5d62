"""Show a verification: to people as a table and sentences, to programs as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dream.tools import support, tables
from dream.tools.placing import PLAIN
from dream.tools.tables import finite, note, table
from dream.tools.verify.causes import Diagnosis, Ruling
from dream.tools.verify.judge import NOISE, NOISE_THERE, Judged, ParameterGap, RunVerdict, Tolerance
from dream.tools.verify.runs import Ran

Causes = Mapping[str, Sequence[Diagnosis]]
"""By strategy."""


def show(rows: Sequence[Judged], single: Ran, causes: Causes, console: Console) -> None:
    """The table, what is allowed, and what went wrong."""
    tables.show(console, _table(rows))
    console.print()
    note(console, caption(single))
    for row in rows:
        for line in remarks(row):
            note(console, line)
        if not row.good:
            console.print()
            console.print(Text(f"{row.cell}: {row.verdict}", style="bold red"))
            for line in details(row, causes.get(row.cell.strategy, ()), _heard(row, single)):
                console.print(Text(f"  {line}"), soft_wrap=True)
    console.print()
    console.print(Text(conclusion(rows), style="bold"))


def caption(single: Ran) -> str:
    """Say what was held against what."""
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
        f"does not seed start from 0, on every rank.{_diverged(single)}"
    )


def batches(single: Ran) -> str:
    """Say how many are in a step, where there are more than one."""
    most = single.first.batches
    if most == 1:
        return ""
    return f" of {most} batches (steps_per_execution={most}: Keras tells the loss after all)"


def _diverged(single: Ran) -> str:
    """Warn where single diverges: what is equal then is worth little."""
    lost = next((n for n, loss in enumerate(single.losses, 1) if not isfinite(loss)), None)
    if lost is None:
        return ""
    return (
        f" Single's loss is {single.losses[lost - 1]:g} in step {lost}: it diverges, and from "
        "there on equal means no number in both. A lower learning rate would tell more."
    )


def remarks(row: Judged) -> Iterator[str]:
    """Say what is equal by the rule of rounding noise only."""
    yield from (f"{row.cell}: {said}" for said in rounded(row))


def rounded(row: Judged) -> Iterator[str]:
    """Say it without the row's name, of the parameter that differs most; the rest are counted."""
    if not row.good or not row.rounding or row.noise is None:
        return
    gap = max(row.rounding, key=lambda gap: gap.size)
    others = len(row.rounding) - 1
    own = row.noise.parameters[gap.name]
    yield (
        f"{gap.name} differs by {gap.size:.1e}, which is rounding: single differs "
        f"from itself by {own:.1e} where {row.noise.how}, "
        f"and {gap.allowed / own:.0f} times that is allowed."
        + (f" The same holds for {others} more, by less." if others else "")
    )


def details(row: Judged, causes: Sequence[Diagnosis], heard: Sequence[str] = ()) -> Iterator[str]:
    """Say what is wrong with a strategy, and why, as far as it is known. heard: what dream said
    meanwhile."""
    yield from row.reason.splitlines()
    if row.worst is not None and row.worst.bad:
        where = f"{row.worst.name}, by {row.worst.size:.1e} on rank {row.worst.rank}"
        yield f"The parameter that differs most: {where}; allowed {row.worst.allowed:.1e}."
    if row.noise is not None and row.noise.gap:
        yield f"How far single is from itself by rounding alone is not known: {row.noise.gap}."
    if row.noise is not None and row.ran is not None and row.ran.first.dtype == "float32":
        yield "The first losses are equal, so it may be rounding that training makes larger."
        yield "Compute in float64 (torch.set_default_dtype, keras.config.set_floatx): rounding is"
        yield "gone then, and what is wrong stays."
    if causes:
        yield "Likely causes:"
    for cause in sorted(causes, key=lambda cause: list(_MARKS).index(cause.ruling)):
        yield f"  {_MARKS[cause.ruling]} {cause.name}: {cause.evidence}."
        if cause.ruling is Ruling.IN and cause.advice:
            yield f"      {cause.advice}"
    if heard:
        yield "What dream said on rank 0 meanwhile, which may be the cause:"
        yield from (f"  {line}" for line in heard)
    elif causes and all(cause.ruling is Ruling.OUT for cause in causes):
        yield "  None of these. What else it may be: a mean over other things than samples (tokens,"
        yield "  masks), which says so by strategy.weigh(loss, count); random numbers drawn for"
        yield "  each sample as it is read (augmentation), which fall on others."


def _heard(row: Judged, single: Ran) -> list[str]:
    """Return what dream said while the ranks trained, and under single did not."""
    lines = () if row.ran is None else row.ran.first.lines
    asked = ("reduction=", "strategy '")
    known = (*single.first.lines, *(line for line in lines if line.startswith(asked)))
    return [line for line in lines if line not in known]


_MARKS = {Ruling.IN: "yes ", Ruling.OPEN: "open", Ruling.OUT: "no  "}


def conclusion(rows: Sequence[Judged]) -> str:
    bad = [row for row in rows if not row.good]
    names = ", ".join(str(row.cell) for row in bad or rows)
    return f"Not equal to single: {names}." if bad else f"Equal to single: {names}."


def _table(rows: Sequence[Judged]) -> Table:
    shown = table(
        "strategy", "replicas", "reduction", "steps", "largest loss\ndifference",
        "largest param-\neter difference", "verdict", words=("strategy", "verdict"),
        folded=["strategy"], gap=1,
    )  # fmt: skip
    for row in rows:
        shown.add_row(*_cells(row))
    return shown


def _cells(row: Judged) -> Iterator[Text]:
    ran = row.ran
    yield Text(row.cell.strategy)
    yield Text(str(row.cell.parts))
    yield Text(_reduction(row))
    yield Text("" if ran is None else str(len(ran.losses)))
    yield Text(f"{max(row.losses):.1e}" if row.losses else "")
    yield Text("" if row.largest is None else f"{row.largest:.1e}")
    yield Text(row.verdict, style="green" if row.verdict is RunVerdict.EQUAL else "bold red")


def _reduction(row: Judged) -> str:
    if row.ran is None or row.cell.parts == 1:
        return ""
    return row.ran.first.reduction if row.cell.processes > 1 else "in process"


Figures = dict[str, Any]


def document(rows: Sequence[Judged], single: Ran, causes: Causes) -> Figures:
    """Return what `--json` writes. A figure that is nan or infinite is null."""
    allowed = Tolerance(single.first.dtype, single.updates)
    return {
        "equal": all(row.good for row in rows),
        "framework": single.first.framework,
        "keras": single.first.keras,
        "versions": support.versions(),
        "steps": len(single.losses),
        "batches_per_step": single.first.batches,
        "ended_early": single.first.stopped,
        "tolerance": {
            "dtype": allowed.dtype,
            "loss": allowed.loss,
            "parameter": allowed.parameter,
            "times_single_from_itself": NOISE,
            "times_where_made_of_rounding": NOISE_THERE,
        },
        "parameters": sorted(single.parameters[0]),
        "losses": [finite(loss) for loss in single.losses],
        "plain": next((_figures(r, causes) for r in rows if r.cell == PLAIN), None),
        "strategies": [_figures(row, causes) for row in rows if row.cell != PLAIN],
    }


def _figures(row: Judged, causes: Causes) -> Figures:
    ran = row.ran
    return {
        "strategy": row.cell.strategy,
        "processes": row.cell.processes,
        "replicas": row.cell.parts,
        "reduction": None if ran is None else ran.first.reduction,
        "verdict": str(row.verdict),
        "equal": row.good,
        "reason": row.reason or None,
        "losses": None if ran is None else [finite(loss) for loss in ran.losses],
        "said": [] if ran is None else list(ran.first.lines),
        "first_step_that_differs": row.first_step,
        "largest_loss_difference": finite(max(row.losses)) if row.losses else None,
        "largest_parameter_difference": None if row.largest is None else finite(row.largest),
        "worst_parameter": None if row.worst is None else _gap_figures(row.worst),
        "equal_but_for_rounding": [_gap_figures(gap) for gap in row.rounding],
        "causes": [
            {
                "name": cause.name,
                "ruling": str(cause.ruling),
                "evidence": cause.evidence,
                "advice": cause.advice or None,
            }
            for cause in causes.get(row.cell.strategy, ())
        ],
    }


def _gap_figures(gap: ParameterGap) -> Figures:
    return {"name": gap.name, "rank": gap.rank, "difference": finite(gap.size),
            "allowed": finite(gap.allowed)}  # fmt: skip
