"""Shares that follow the ranks' speeds: when these are compared, and what comes of it."""

from __future__ import annotations

from typing import NamedTuple, final

from dream._errors import Unsupported
from dream._log import logger
from dream.collectives import Communicator
from dream.data.partition import Divided, Division

_FIRST, _EVERY = 6, 32
"""Batches before the ranks compare for the first time, and between two times after that."""

WARM = 2
"""First batches that are not counted: they are slow in ways of their own."""

_WORTH = 0.1
"""Part of a rank's share that a change must be to be made: times are noisy."""

BLIND = (
    "shares='auto' leaves shares equal: BatchNorm over the global batch has ranks wait for one "
    "another in forward, where their speeds are measured. Give shares by hand, as in shares=[3, 1]"
)


def check_measured(device: str) -> None:
    """Refuse devices on which an operation returns before it is over."""
    if not device.lower().startswith("cpu"):
        raise Unsupported(
            "A GPU computes asynchronously, so the ranks' speeds cannot be measured. Received: "
            f"shares='auto' on {device}. Give them by hand, as in shares=[3, 1]."
        )


class Taken(NamedTuple):
    """What a rank has taken for its samples of so many batches: seconds, in which it waited for no
    other."""

    samples: int
    seconds: float
    batches: int


@final
class Speeds:
    """Divides batches by the ranks' speeds; every rank asks at the same batches.

    divided: what is changed, between two batches, on all ranks alike. over: that no more.
    """

    def __init__(self, ranks: Communicator, divided: Divided) -> None:
        self._ranks, self._divided = ranks, divided
        self._left = _FIRST
        self.over = False

    def due(self, batches: int = 1) -> bool:
        """Count batches that are about to be dealt; tell whether to compare before them."""
        self._left -= batches
        return self._left <= 0

    def compare(self, taken: Taken, *, blind: bool = False) -> bool:
        """Compare with the others; tell whether batches are divided otherwise from here on.

        blind: whether ranks wait for one another where their speeds are measured.
        """
        self._left = _EVERY
        told = self._ranks.all_gather_object((*taken, blind))
        size = sum(samples for samples, *_ in told) // max(1, taken.batches)
        if any(blind for *_, blind in told):
            self.end(BLIND)
        elif size >= len(told) and all(samples and seconds for samples, seconds, *_ in told):
            return self._follow([samples / seconds for samples, seconds, *_ in told], size)
        return False

    def end(self, why: str) -> None:
        """Leave shares as they are from here on, and say why."""
        self.over = True
        logger.info(why)

    def _follow(self, speeds: list[float], batch_size: int) -> bool:
        wanted = Division.by_speed(speeds, batch_size)
        parts = range(wanted.parts)
        now = [len(self._divided.now.rows(batch_size, part)) for part in parts]
        then = [len(wanted.rows(batch_size, part)) for part in parts]
        if all(abs(a - b) <= max(_WORTH * a, 1) for a, b in zip(now, then, strict=True)):
            return False
        self._divided.now = wanted
        logger.info(
            "shares follow the ranks' speeds: of %d samples %s by rank, before %s",
            batch_size, then, now,
        )  # fmt: skip
        return True
