"""What was trained, how it was timed, and what that is worth: the words below a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from dream import _placing
from dream.tools.compare import tasks, verdict
from dream.tools.compare.judge import Row
from dream.tools.compare.machine import Machine
from dream.tools.compare.outcome import Finished
from dream.tools.compare.settings import Settings
from dream.tools.verify.tolerance import LIMIT


def caption(rows: Sequence[Row], settings: Settings) -> str:
    """How the columns were read."""
    return (
        f"{trained(rows, settings)} {timing(settings)} {alone(rows, settings)}"
        "Start-up: from the command to the end of the first step. Peak: resident memory of "
        "the largest rank. Final loss: "
        f"{_final(settings)}. "
        f"{_score(settings)}{proof(rows, settings)}"
    )


def proof(rows: Sequence[Row], settings: Settings) -> str:
    """What the verdicts mean."""
    said = (
        "Largest difference: of any parameter from the same framework's single, in any round; "
        f"{_equal(settings)}{_mixed(rows)}"
    )
    if any(_placing.departs(row.cell.strategy) for row in rows):
        said += (
            " Learns: not meant to equal single, for replicas do not wait for each other; the loss "
            f"comes down at least {verdict.CONVERGED:.0%} of the way that single's does."
        )
    if any(row.cell.splits for row in rows):
        said += " Where a model is split, replicas are its parts, times its copies."
    return said


def trained(rows: Sequence[Row], settings: Settings) -> str:
    """What every row trains."""
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


def _at_once(rows: Sequence[Row]) -> str:
    """Where a step is several batches."""
    done = [row.outcome for row in rows if isinstance(row.outcome, Finished)]
    most = max((each.batches for each in done), default=1)
    return f" A step is {most} batches, as steps_per_execution={most} has it." if most > 1 else ""


def timing(settings: Settings) -> str:
    """How speeds were read."""
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


def worth(rows: Sequence[Row], settings: Settings, machine: Machine) -> str:
    """What the speeds are worth here."""
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


def alone(rows: Sequence[Row], settings: Settings) -> str:
    """How rows were read whose replicas do not wait for one another, and those with a slow one;
    how long each took to be as good as single."""
    said = ""
    if not settings.script:
        said += (
            "Seconds to score: from the beginning of the first step to the end of the first epoch "
            "after which the test score is that of single's end less "
            f"{verdict.POINT:g}, tests left out. "
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


def _mixed(rows: Sequence[Row]) -> str:
    if not any(row.cell.kind.mixed for row in rows):
        return ""
    limit = f"{verdict.MIXED_LIMIT:.0e}"
    return f" Rows of two frameworks are held against the single of rank 0's, at {limit}."
