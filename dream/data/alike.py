"""Whether the data of all ranks are alike: what digests of it say, and when to look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from dream._errors import Desynchronized

_OFTEN, _EVERY = 16, 16


@final
class Looks:
    """Says when to look at what comes again and again: at the first times, and at every so many
    later ones. Alike on every rank that counts alike."""

    def __init__(self) -> None:
        self._times = 0

    def due(self) -> bool:
        self._times += 1
        return self._times <= _OFTEN or self._times % _EVERY == 0


def check_data(said: Sequence[object], what: str = "") -> None:
    """Raise `Desynchronized` where a rank's data are others than rank 0's.

    said: a digest of each rank's, in rank order. what: of which data, where a call is given
    several.
    """
    if len(set(said)) > 1:
        raise Desynchronized(
            "The ranks' data differ: the same index gives another sample, or the lengths are "
            f"others. Received: {what and f'{what}: '}{unlike(said)}. Seed what splits or orders "
            "the data (sets of strings have no order), and read the same files on every rank."
        )


def other_batches(said: Sequence[int]) -> Desynchronized:
    """Make the error of ranks that read other batches. said: a digest of each rank's, if known."""
    return Desynchronized(
        f"The ranks read different batches from the same source. Received: {unlike(said)}, by a "
        "digest of a batch. Seed what draws or shuffles the data (sets of strings have no order), "
        "and read the same files, so that every rank sees the same global batches."
    )


def unlike(said: Sequence[object]) -> str:
    """Name the ranks that say something else than rank 0."""
    others = [str(rank) for rank, value in enumerate(said) if value != said[0]]
    if not others:
        return "some ranks other than rank 0"
    return f"rank{'s' * (len(others) > 1)} {', '.join(others)} other than rank 0"
