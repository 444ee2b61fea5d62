"""Gradients of the parts of a batch, until they make a whole one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Part:
    """weight: how many things the loss is the mean over; present: as in `Owner.step`."""

    gradient: NDArray[Any]
    present: bytes
    weight: float
    loss: float


@final
class Parts:
    """Batches of which some parts have come."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, dict[int, Part]] = {}

    def add(self, batch: Hashable, index: int, of: int, part: Part) -> Part | None:
        """The mean over the whole batch, once all of it is here. A part that comes again takes
        its own place."""
        if of == 1:
            return part
        import numpy as np

        waiting = self._waiting.setdefault(batch, {})
        waiting[index] = part
        if len(waiting) < of:
            waiting[index] = Part(np.array(part.gradient), part.present, part.weight, part.loss)
            return None
        del self._waiting[batch]
        return _mean([waiting[index] for index in range(of)])


def _mean(parts: list[Part]) -> Part:
    """The weighted mean, added up in the parts' order."""
    total = sum(part.weight for part in parts)
    shares = [part.weight / total if total else 0.0 for part in parts]
    import numpy as np

    gradient = np.zeros_like(parts[0].gradient)
    for part, share in zip(parts, shares, strict=True):
        if share:  # the mean over nothing is nan
            gradient += part.gradient * share
    loss = sum(part.loss * share for part, share in zip(parts, shares, strict=True) if share)
    return Part(gradient, _either([part.present for part in parts]), total, loss)


def _either(masks: list[bytes]) -> bytes:
    if not all(masks):
        return b""
    return bytes(max(column) for column in zip(*masks, strict=True))
