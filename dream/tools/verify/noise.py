"""How far single is from itself when each batch is summed in as many parts as there are replicas.

Where a parameter's gradient is nothing but rounding (attention's key bias, a bias before a
normalisation), Adam makes steps of it: no order of summation is then the right one. A model that
looks at a batch as a whole, as BatchNorm does, cannot work on it in parts, but on its samples in
another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dream.tools.recording.request import Change
from dream.tools.verify import gaps
from dream.tools.verify.runs import Failed, Laboratory, Outcome, Ran
from dream.tools.verify.tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class Noise:
    """losses: by step; parameters: by name. how: what single was told to do otherwise. gap: why it
    could not be measured."""

    parts: int
    losses: Sequence[float] = ()
    parameters: Mapping[str, float] = field(default_factory=dict)
    gap: str = ""
    how: str = ""


def measure(laboratory: Laboratory, single: Ran, parts: int, *changes: Change) -> Noise:
    """changes: those that single was run with.

    Nothing is known where the first loss moves by more than rounding does: then what a sample
    gives depends on which others are worked on with it, or on random numbers.
    """
    summed = f"each batch is summed in {parts} parts"
    found = _held(laboratory.single(*changes, parts=parts), single, Noise(parts, how=summed))
    if not found.gap:
        return found
    ran = laboratory.single(*changes, "reordered", parts=parts)
    again = _held(ran, single, Noise(parts, how="each batch's samples are in another order"))
    return found if again.gap else again


def _held(ran: Outcome, single: Ran, asked: Noise) -> Noise:
    if isinstance(ran, Failed):
        why = ran.reason.strip().splitlines()[-1]
        return replace(asked, gap=f"in parts, single failed: {why}")
    losses = gaps.of_losses(ran.losses, single.losses)
    allowed = Tolerance(single.first.dtype, single.updates).loss
    if not losses or not losses[0] <= allowed * max(1.0, abs(single.losses[0])):
        return replace(asked, gap="in parts, single's first loss is another: its model looks at a "
                       "batch as a whole, or draws random numbers")  # fmt: skip
    return replace(
        asked, losses=losses, parameters=gaps.by_name(ran.parameters[0], single.parameters[0])
    )
