"""Whether the data of all ranks are alike: what digests of it say, and when to look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

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
            "The ranks' data differ: the same index gives different samples, or the lengths "
            f"differ. Received: {what and f'{what}: '}{unlike(said)}. Seed whatever splits or "
            "orders the data (iterating a set of strings has no fixed order), and read the same "
            "files on every rank."
        )


def other_batches(said: Sequence[int]) -> Desynchronized:
    """Make the error of ranks that read other batches. said: a digest of each rank's, if known."""
    return Desynchronized(
        f"The ranks read different batches from the same source. Received: {unlike(said)}, by a "
        "digest of a batch. Seed whatever draws or shuffles the data (iterating a set of strings "
        "has no fixed order), and read the same files, so that every rank sees the same global "
        "batches."
    )


def of_one_place(said: Sequence[tuple[str, Any]]) -> list[Any]:
    """Return what the ranks said, each with the place of training that it has come to;
    `Desynchronized` where these are several."""
    places = [_place(each) for each in said]
    if len(set(places)) > 1:
        each = ", ".join(f"rank {rank} {place}" for rank, place in enumerate(places))
        raise Desynchronized(
            "The ranks are at different points of the training, for example because one rank's "
            f"data ended earlier. Received: {each}. Give every rank the same number of batches, "
            "and let no callback stop training or evaluate on a single rank."
        )
    return [value for _, value in said]


def _place(said: Any) -> str:
    """Name the place that a rank has told; one in a call of another kind has told none."""
    told = isinstance(said, (list, tuple)) and len(said) == 2 and isinstance(said[0], str)
    return said[0] if told else "in another call"


def unlike(said: Sequence[object]) -> str:
    """Name the ranks that say something else than rank 0."""
    others = [str(rank) for rank, value in enumerate(said) if value != said[0]]
    if not others:
        return "some ranks other than rank 0"
    return f"rank{'s' * (len(others) > 1)} {', '.join(others)} other than rank 0"
