"""A sentence per question: what is fastest, what needs least memory, whether anything differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

from dream.tools.compare.judge import Row
from dream.tools.compare.machine import Machine
from dream.tools.compare.outcome import Finished
from dream.tools.compare.spread import Spread, best, number
from dream.tools.compare.verdict import Verdict

_LISTED = 4


def answers(rows: Sequence[Row], machine: Machine, unit: str = "samples/s") -> dict[str, str]:
    """Question -> answer. unit: of speeds."""
    usual = [row for row in rows if row.cell.slow is None]
    said = {"fastest": fastest(usual, machine, unit), "memory": thriftiest(usual)}
    if any(row.seconds is not None for row in rows):
        said["soonest"] = soonest(usual, machine)
    if len(usual) < len(rows):
        said["slow"] = held_back(rows)
    return said | {"differs": differs(rows)}


def fastest(rows: Sequence[Row], machine: Machine, unit: str) -> str:
    """Among rows that are right and have a core for every replica."""
    able = [row for row in _right(rows) if row.cell.replicas <= machine.cores]
    said = _best(able, _speed, "Fastest", lambda value: f"{number(value)} {unit}", most=True)
    if machine.busy and able:
        said += f" But the machine was busy ({machine.busy}): measure again when it is quiet."
    return said


def thriftiest(rows: Sequence[Row]) -> str:
    """By the largest rank's memory: beyond what importing the framework takes, and in all."""
    beyond, whole = (
        _best(_right(rows), figure, said, _megabytes, most=False)
        for said, figure in (
            ("Least memory in a rank, beyond importing the framework", _memory),
            ("In all", _peak),
        )
    )
    return f"{beyond} {whole}"


def _speed(row: Row) -> Spread:
    return _finished(row).speed


def _memory(row: Row) -> Spread:
    return _finished(row).memory


def _peak(row: Row) -> Spread:
    return _finished(row).over_rounds(lambda each: each.peak_bytes)


def _to_score(row: Row) -> Spread:
    assert row.seconds is not None
    return row.seconds


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.1f} MB"


def soonest(rows: Sequence[Row], machine: Machine) -> str:
    """To be as good on the test set as single is at its end, less a point."""
    what = "Soonest as good as single is at its end"
    able = [row for row in _right(rows) if row.cell.replicas <= machine.cores]
    came = [row for row in able if row.seconds is not None and isfinite(row.seconds.median)]
    said = _best(came, _to_score, what, lambda value: f"{value:.2f} s", most=False)
    late = len(able) - len(came)
    return f"{said} {late} did not come so far." if late else said


def held_back(rows: Sequence[Row]) -> str:
    """By a slow worker: rows that wait for it, and those that do not."""
    slow = [row for row in rows if row.cell.slow is not None]
    said = [
        f"those whose workers {how} keep {_between(kept)} of their speed"
        for how, waits in (("wait for one another", True), ("do not", False))
        if (kept := [r.kept for r in slow if r.kept is not None and r.cell.waits is waits])
    ]
    told = "; ".join(said) or "no row to tell of"
    return f"With {slow[0].cell.slow}: {told}."


def _between(shares: Sequence[float]) -> str:
    least, most = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return least if least == most else f"{least} to {most}"


def differs(rows: Sequence[Row]) -> str:
    """Whether a row broke a law."""
    left_out = (Verdict.SKIPPED, Verdict.REFUSED)
    ran = [row for row in rows if row.verdict not in left_out]
    bad = [row for row in ran if not row.verdict.good]
    rest = f" {len(rows) - len(ran)} skipped or refused." if len(ran) < len(rows) else ""
    if bad:
        named = ", ".join(f"{row.cell} ({row.verdict})" for row in bad[:_LISTED])
        more = " and others" if len(bad) > _LISTED else ""
        return (
            f"{len(bad)} of {len(ran)} rows broke a law or did not finish.{rest} "
            f"Not to be trusted: {named}{more}."
        )
    exact = [row for row in ran if row.verdict is not Verdict.LEARNS]
    held = [row for row in exact if row.verdict is not Verdict.ORACLE]
    told = [(row.difference, row.limit) for row in held if row.difference is not None]
    found = [difference for difference, limit in told if difference <= limit]
    worst = f", the largest difference {max(found):.1e}" if found else ""
    every = f"All {len(exact)}" if len(exact) == len(ran) else f"{len(exact)} of {len(ran)}"
    free = (
        f" Not meant to, and learning by their own way: {len(ran) - len(exact)}."
        if len(exact) < len(ran)
        else ""
    )
    further = len(told) - len(found)
    noisy = (
        f" In {further} of them a parameter is further off, by rounding alone: single is as far "
        "from itself."
        if further
        else ""
    )
    return f"{every} rows learned the weights of single{worst}.{noisy}{free}{rest}"


def _best(
    rows: Sequence[Row],
    figure: Callable[[Row], Spread],
    what: str,
    show: Callable[[float], str],
    *,
    most: bool,
) -> str:
    found = best(rows, figure, most=most)
    if found is None:
        return f"{what}: no row to tell of."
    first, beside = found
    read = figure(first)
    if read.rounds == 1:
        return f"{what}: not told by a single round; --rounds 3 or more."
    shown = show(read.median)
    if not beside:
        return f"{what}: {first.cell}, {shown}."
    named = ", ".join(str(row.cell) for row in [first, *beside][:_LISTED])
    more = f" and {len(beside) + 1 - _LISTED} others" if len(beside) >= _LISTED else ""
    return f"{what}: {named}{more}, not told apart by {read.rounds} rounds (best median {shown})."


def _right(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if isinstance(row.outcome, Finished) and row.verdict.good]


def _finished(row: Row) -> Finished:
    assert isinstance(row.outcome, Finished)
    return row.outcome
