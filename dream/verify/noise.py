"""How far single is from itself when each batch is summed in as many parts as there are replicas.

Where a parameter's gradient is nothing but rounding (attention's key bias, a bias before a
normalisation), Adam makes steps of it: no order of summation is then the right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dream.recording.request import Change

from . import gaps
from .runs import Failed, Laboratory, Ran
from .tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class Noise:
    """losses: by step; parameters: by name. gap: why it could not be measured."""

    parts: int
    losses: Sequence[float] = ()
    parameters: Mapping[str, float] = field(default_factory=dict)
    gap: str = ""


def measure(laboratory: Laboratory, single: Ran, parts: int, *changes: Change) -> Noise:
    """changes: those that single was run with.

    Nothing is known where the first loss moves by more than rounding does: then what a sample
    gives depends on which others are worked on with it, or on random numbers.
    """
    ran = laboratory.single(*changes, parts=parts)
    if isinstance(ran, Failed):
        return Noise(parts, gap=f"in parts, single failed: {ran.reason.strip().splitlines()[-1]}")
    losses = gaps.of_losses(ran.losses, single.losses)
    allowed = Tolerance(single.first.dtype, len(single.losses)).loss
    if not losses or not losses[0] <= allowed * max(1.0, abs(single.losses[0])):
        return Noise(parts, gap="in parts, single's first loss is another: its model looks at a "
                     "batch as a whole, or draws random numbers")  # fmt: skip
    return Noise(parts, losses, gaps.by_name(ran.parameters[0], single.parameters[0]))
