"""A sentence per question: what is fastest, what needs least memory, whether anything differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dream.compare.judge import Row, Verdict
from dream.compare.machine import Machine
from dream.compare.outcome import Finished
from dream.compare.spread import Spread, best, number

_LISTED = 4


def answers(rows: Sequence[Row], machine: Machine, unit: str = "samples/s") -> dict[str, str]:
    """Question -> answer. unit: of speeds."""
    return {
        "fastest": fastest(rows, machine, unit),
        "memory": thriftiest(rows),
        "differs": differs(rows),
    }


def fastest(rows: Sequence[Row], machine: Machine, unit: str) -> str:
    """Among rows that are right and have a core for every replica."""
    able = [row for row in _right(rows) if row.cell.replicas <= machine.cores]
    said = _best(
        able, lambda done: done.speed, "Fastest", lambda value: f"{number(value)} {unit}", most=True
    )
    if machine.busy:
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


def _memory(done: Finished) -> Spread:
    return done.memory


def _peak(done: Finished) -> Spread:
    return done.over_rounds(lambda each: each.peak_bytes)


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.1f} MB"


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
    found = [row.difference for row in exact if row.difference is not None]
    worst = f", the largest difference {max(found):.1e}" if found else ""
    every = f"All {len(exact)}" if len(exact) == len(ran) else f"{len(exact)} of {len(ran)}"
    free = (
        f" {len(ran) - len(exact)} are not meant to, and learn by their own way."
        if len(exact) < len(ran)
        else ""
    )
    return f"{every} rows learned the weights of single{worst}.{free}{rest}"


def _best(
    rows: Sequence[Row],
    figure: Callable[[Finished], Spread],
    what: str,
    show: Callable[[float], str],
    *,
    most: bool,
) -> str:
    found = best(rows, lambda row: figure(_finished(row)), most=most)
    if found is None:
        return f"{what}: no row to tell of."
    first, beside = found
    read = figure(_finished(first))
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
