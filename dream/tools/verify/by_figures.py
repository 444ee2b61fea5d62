"""Suspects that the figures of the runs there are tell of."""

from __future__ import annotations

from collections.abc import Callable

from dream.tools.verify import facts
from dream.tools.verify.cause import Cause, Ruling
from dream.tools.verify.judge import Judged
from dream.tools.verify.runs import Ran
from dream.tools.verify.tolerance import Tolerance

SLICING = "the script deals out its data itself"
SUM = "the loss is a sum over samples"
UNEVEN = "an uneven batch"
_CLOSE = 1e-3


def slicing(_: Judged, ours: Ran, single: Ran) -> Cause:
    said = facts.slicing(single.first, ours.records)
    if not said and not facts.reads_known(single.first):
        return Cause(SLICING, Ruling.OPEN, "it was not seen what the model is given")
    if not said:
        return Cause(SLICING, Ruling.OUT, "ranks are given no fewer samples than single")
    advice = "Give every rank the whole dataset: dream deals each batch out."
    return Cause(SLICING, Ruling.IN, said, advice)


def sum_of_samples(judged: Judged, ours: Ran, single: Ran) -> Cause:
    allowed = Tolerance(single.first.dtype, single.updates)
    times, parts = facts.first_loss_times(single.losses, ours.losses, allowed), judged.cell.parts
    if times is None or abs(times - parts) > _CLOSE * parts:
        return Cause(SUM, Ruling.OUT, "the first loss is no multiple of single's")
    said = f"single's first loss is {parts} times the mean over the ranks, as a sum's would be"
    advice = "Take the mean over samples, or strategy.weigh(loss, count) for one over other things."
    return Cause(SUM, Ruling.IN, said, advice)


def uneven(judged: Judged, ours: Ran, _: Ran) -> Cause:
    """Losses part in the first uneven step, or behind it, where its gradient was wrong."""
    steps, bad = facts.uneven_steps(ours.records), judged.first_step
    if not facts.shares_known(ours.records):
        return Cause(UNEVEN, Ruling.OPEN, "it was not seen how batches were shared")
    if not steps:
        return Cause(UNEVEN, Ruling.OUT, "every batch was shared evenly")
    said = f"the first one is in step {steps[0]}"
    if bad is not None and not steps[0] <= bad <= steps[0] + 1:
        return Cause(UNEVEN, Ruling.OUT, said)
    unweighed = facts.counted_alike(ours.records, steps[0])
    if not unweighed:
        return Cause(UNEVEN, Ruling.OPEN, said)
    advice = "strategy.weigh(loss, count), or batches of a loader made in the block."
    return Cause(UNEVEN, Ruling.IN, unweighed, advice)


FIGURES: tuple[Callable[[Judged, Ran, Ran], Cause], ...] = (slicing, sum_of_samples, uneven)
