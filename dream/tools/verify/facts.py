"""What the records themselves tell of a cause."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from dream.tools.recording.record import Record
from dream.tools.verify.tolerance import Tolerance


def listed(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def first_other_input(one: Record, other: Record) -> int | None:
    """The first step, from 1, in which the model is given something else."""
    for number, (a, b) in enumerate(zip(one.steps, other.steps, strict=False), start=1):
        if (a.samples, a.glance) != (b.samples, b.glance):
            return number
    return None


def reads_known(single: Record) -> bool:
    """Whether it was seen how much the model is given."""
    return bool(single.datasets) or any(step.samples is not None for step in single.steps)


def slicing(single: Record, ranks: Sequence[Record]) -> str:
    """How it shows that a script deals data out by itself; empty where it does not. A rank may
    make its loaders in another order, or some of them only."""
    for record in ranks:
        for mine, whole in zip(record.datasets, single.datasets, strict=False):
            if mine < whole and mine not in single.datasets:
                return (
                    f"a dataset holds {whole} samples under single, and {mine} on rank "
                    f"{record.rank}, where dream deals them out once more"
                )
    first = [record.steps[0].samples for record in ranks if record.steps]
    whole_batch = single.steps[0].samples if single.steps else None
    known = [samples for samples in first if samples is not None]
    if whole_batch is None or len(known) < len(ranks) or sum(known) >= whole_batch:
        return ""
    return f"in step 1 single trains on {whole_batch} samples, all ranks together on {sum(known)}"


def first_loss_times(
    single: Sequence[float], ours: Sequence[float], allowed: Tolerance
) -> float | None:
    """In times of ours, single's first loss; None where they are equal, or one is no number."""
    if not single or not ours or not ours[0] or not isfinite(single[0]) or not isfinite(ours[0]):
        return None
    if abs(single[0] - ours[0]) <= allowed.loss * max(1.0, abs(single[0])):
        return None
    return single[0] / ours[0]


def shares_known(ranks: Sequence[Record]) -> bool:
    """Whether it was seen how batches were shared; an equal share is also what is said where
    nothing is known."""
    return all(s.samples is not None or s.weight not in (None, 1.0) for r in ranks for s in r.steps)


def uneven_steps(ranks: Sequence[Record]) -> list[int]:
    """The steps, from 1, in which ranks had unequal shares."""
    return [
        number
        for number, steps in enumerate(zip(*(r.steps for r in ranks), strict=False), start=1)
        if len({step.weight for step in steps}) > 1 or len({step.samples for step in steps}) > 1
    ]


def counted_alike(ranks: Sequence[Record], number: int) -> str:
    """How it shows that unequal shares counted as equal ones; empty where they did not."""
    steps = [record.steps[number - 1] for record in ranks]
    sizes = [step.samples for step in steps]
    weights = {step.weight for step in steps}
    if len(weights) > 1 or None in weights or len(set(sizes)) == 1 or None in sizes:
        return ""
    return f"in step {number} the ranks had {', '.join(map(str, sizes))} samples, counted alike"
