"""Say what was trained, how it was timed, what that is worth, and which row is best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

from dream.tools import placing
from dream.tools.compare import judge, tasks
from dream.tools.compare.judge import JudgedCell, RowVerdict
from dream.tools.compare.outcome import Finished, RoundSpread, best, number
from dream.tools.compare.settings import Settings
from dream.tools.machine import Machine
from dream.tools.verify.judge import LIMIT


def caption(rows: Sequence[JudgedCell], settings: Settings) -> str:
    """Say how the columns were read."""
    return (
        f"{trained(rows, settings)} {timing(settings)} {alone(rows, settings)}"
        "Start-up: from the command to the end of the first step. Peak: resident memory of "
        "the largest rank. Final loss: "
        f"{_final(settings)}. "
        f"{_score(settings)}{proof(rows, settings)}"
    )


def proof(rows: Sequence[JudgedCell], settings: Settings) -> str:
    """Say what the verdicts mean."""
    said = (
        "Largest difference: of any parameter from the same framework's single, in any round; "
        f"{_equal(settings)}{_mixed(rows)}"
    )
    if any(placing.departs(row.cell.strategy) for row in rows):
        said += (
            " Learns: not meant to equal single, for replicas do not wait for each other; the loss "
            f"comes down at least {judge.CONVERGED:.0%} of the way that single's does."
        )
    if any(row.cell.splits for row in rows):
        said += " Where a model is split, replicas are its parts, times its copies."
    return said


def trained(rows: Sequence[JudgedCell], settings: Settings) -> str:
    """Say what every row trains."""
    if settings.script:
        _, name, *arguments = settings.script
        return (
            f"{' '.join([name, *arguments])}, unchanged; every row's steps are recorded alike, "
            f"which takes a little of their time.{_at_once(rows)}"
        )
    job, task = settings.job, tasks.find(settings.job.task)
    passes = f"{job.epochs} epoch{'s' * (job.epochs > 1)} of {task.samples:,} samples"
    last = task.samples % job.batch_size or job.batch_size
    return (
        f"{task.summary[0].upper()}{task.summary[1:]}; momentum SGD, {passes}, global batch "
        f"{job.batch_size}, the last one of {last}. Every row starts from the same weights and "
        "sees the same batches."
    )


def _at_once(rows: Sequence[JudgedCell]) -> str:
    """Say so where a step is several batches."""
    done = [row.outcome for row in rows if isinstance(row.outcome, Finished)]
    most = max((each.batches for each in done), default=1)
    return f" A step is {most} batches, as steps_per_execution={most} has it." if most > 1 else ""


def timing(settings: Settings) -> str:
    """Say how speeds were read."""
    warm_up = "the first epoch" if settings.job.epochs > 1 else "the first step"
    if settings.script:
        warm_up = "the first tenth of the steps"
    apart = f"without {warm_up}, the warm-up"
    if settings.rounds == 1:
        return f"{settings.unit}: {apart}; a single round, so nothing is ranked."
    return (
        f"{settings.unit}: the median of {settings.rounds} rounds, in which the rows take turns, "
        f"{apart}; beside it the slowest and the fastest round. Not told apart: the rounds of the "
        "row and of single overlap."
    )


def worth(rows: Sequence[JudgedCell], settings: Settings, machine: Machine) -> str:
    """Say what the speeds are worth here."""
    said = []
    if not settings.script:
        said.append(
            "This model is tiny: replicas spend their time on talk, not on work, and a run is "
            "short: more --epochs, steadier speeds."
        )
    most = max(row.cell.replicas for row in rows)
    if most > machine.cores:
        said.append(
            f"{most} replicas on {machine.cores} cores show what is right, not what is fast."
        )
    if machine.busy:
        said.append(
            f"The machine was busy ({machine.busy}): do not trust the speeds. Threads of one rank "
            "wait for each other, so others slow down single, which has them all, most of all."
        )
    return " ".join(said)


def alone(rows: Sequence[JudgedCell], settings: Settings) -> str:
    """Say how rows were read whose replicas do not wait for one another, and those with a slow
    one; how long each took to be as good as single."""
    said = ""
    if not settings.script:
        said += (
            "Seconds to score: from the beginning of the first step to the end of the first epoch "
            "after which the test score is that of single's end less "
            f"{judge.POINT:g}, tests left out. "
        )
    if any(isinstance(row.outcome, Finished) and row.outcome.staleness for row in rows):
        said += (
            "Staleness: the updates that others had made meanwhile, which a gradient has not seen; "
            "under local_sgd, the steps of the other replicas since the last average. "
        )
    if not all(row.cell.waits for row in rows):
        said += (
            "Speed where workers do not wait: what all of them trained on together, by the clock "
            "of the whole job. "
        )
    if settings.slow:
        said += (
            f"Rows with {settings.slow}: that rank sleeps after each step of its own, "
            f"{settings.slow.factor - 1:g} times as long as the step took. "
        )
    return said


def _final(settings: Settings) -> str:
    return (
        "last step's, in Keras its epoch's mean" if settings.script else "mean over the last epoch"
    )


def _score(settings: Settings) -> str:
    if settings.script:
        return ""
    return f"Test score: {tasks.find(settings.job.task).score.removeprefix('test ')}. "


def _equal(settings: Settings) -> str:
    if settings.script:
        return (
            "equal means what rounding does in so many steps, and ranks alike to the last bit, as "
            "in dream verify, which also finds causes."
        )
    return f"equal means at most {LIMIT:.0e}, and ranks alike to the last bit."


def _mixed(rows: Sequence[JudgedCell]) -> str:
    if not any(row.cell.kind.mixed for row in rows):
        return ""
    limit = f"{judge.MIXED_LIMIT:.0e}"
    return f" Rows of two frameworks are held against the single of rank 0's, at {limit}."


_LISTED = 4


def answers(
    rows: Sequence[JudgedCell], machine: Machine, unit: str = "samples/s"
) -> dict[str, str]:
    """Question -> answer. unit: of speeds."""
    usual = [row for row in rows if row.cell.slow is None]
    said = {"fastest": fastest(usual, machine, unit), "memory": thriftiest(usual)}
    if any(row.seconds is not None for row in rows):
        said["soonest"] = soonest(usual, machine)
    if len(usual) < len(rows):
        said["slow"] = held_back(rows)
    return said | {"differs": differs(rows)}


def fastest(rows: Sequence[JudgedCell], machine: Machine, unit: str) -> str:
    """Among rows that are right and have a core for every replica."""
    able = [row for row in _right(rows) if row.cell.replicas <= machine.cores]
    said = _best(able, _row_speed, "Fastest", lambda value: f"{number(value)} {unit}", most=True)
    if machine.busy and able:
        said += f" But the machine was busy ({machine.busy}): measure again when it is quiet."
    return said


def thriftiest(rows: Sequence[JudgedCell]) -> str:
    """By the largest rank's memory: beyond what importing the framework takes, and in all."""
    beyond, whole = (
        _best(_right(rows), figure, said, _megabytes, most=False)
        for said, figure in (
            ("Least memory in a rank, beyond importing the framework", _memory),
            ("In all", _peak),
        )
    )
    return f"{beyond} {whole}"


def _row_speed(row: JudgedCell) -> RoundSpread:
    return _outcome(row).speed


def _memory(row: JudgedCell) -> RoundSpread:
    return _outcome(row).memory


def _peak(row: JudgedCell) -> RoundSpread:
    return _outcome(row).over_rounds(lambda each: each.peak_bytes)


def _to_score(row: JudgedCell) -> RoundSpread:
    assert row.seconds is not None
    return row.seconds


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.1f} MB"


def soonest(rows: Sequence[JudgedCell], machine: Machine) -> str:
    """To be as good on the test set as single is at its end, less a point."""
    what = "Soonest as good as single is at its end"
    able = [row for row in _right(rows) if row.cell.replicas <= machine.cores]
    came = [row for row in able if row.seconds is not None and isfinite(row.seconds.median)]
    said = _best(came, _to_score, what, lambda value: f"{value:.2f} s", most=False)
    late = len(able) - len(came)
    return f"{said} {late} did not come so far." if late else said


def held_back(rows: Sequence[JudgedCell]) -> str:
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


def differs(rows: Sequence[JudgedCell]) -> str:
    """Say whether a row broke a law."""
    left_out = (RowVerdict.SKIPPED, RowVerdict.REFUSED)
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
    exact = [row for row in ran if row.verdict is not RowVerdict.LEARNS]
    held = [row for row in exact if row.verdict is not RowVerdict.ORACLE]
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
    rows: Sequence[JudgedCell],
    figure: Callable[[JudgedCell], RoundSpread],
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


def _right(rows: Sequence[JudgedCell]) -> list[JudgedCell]:
    return [row for row in rows if isinstance(row.outcome, Finished) and row.verdict.good]


def _outcome(row: JudgedCell) -> Finished:
    assert isinstance(row.outcome, Finished)
    return row.outcome
