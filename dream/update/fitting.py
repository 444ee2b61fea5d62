"""`accumulate="auto"`: as many micro-batches as memory asks for, found while training.

Every rank tells all others, beside its gradients, whether its memory ran out in an update. Where
any did, no rank steps: all begin the update again, in twice as many micro-batches.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import Final

AUTO: Final = "auto"
WENT_WELL: Final = 0.0


class RanOut(Exception):
    """Memory ran out in an update, on this rank or another: told on every rank alike.

    final: some rank cannot compute it in smaller parts.
    """

    def __init__(self, told: float) -> None:
        """told: what the ranks have told, together."""
        super().__init__(told)
        self.final = not isfinite(told)


def word(*, final: bool) -> float:
    """Return what a rank whose memory ran out tells. Sums and means of such are told from those of
    ranks where all went well."""
    return inf if final else 1.0


def hear(told: float) -> None:
    """Raise on every rank where one has told that its memory ran out. told: a sum, or a mean."""
    if told != WENT_WELL:
        raise RanOut(told)


def hint(micros: int) -> str:
    """Return what is said beside the framework's own error where an update cannot be cut more."""
    return (
        f"accumulate={AUTO!r}: memory ran out with {micros} micro-batches to an update, of one row "
        "each on this rank. Use recompute=True, precision='bfloat16', shorter rows, or a strategy "
        "that shards the model ('sharded')."
    )


def elsewhere(micros: int) -> str:
    """Return what the other ranks say then."""
    return (
        f"Another rank's memory ran out, and its batch cannot be cut further. Received: {micros} "
        f"micro-batches to an update under accumulate={AUTO!r}. That rank says why."
    )


def now(micros: int) -> str:
    """Return what is said once the number has changed."""
    return (
        f"memory ran out, on this rank or another: the update is begun again, and from here on one "
        f"is computed in {micros} micro-batches. accumulate={micros} begins with that"
    )
