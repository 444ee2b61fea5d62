"""Where the ranks of a group lay open what they are about to do, before a byte of it moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from dream import stall
from dream._errors import Desynchronized, WorkerFailed
from dream.collectives.call import Call


class Board(ABC):
    """One for each group of ranks. Every rank of it makes the same calls in the same order; it
    is this that the board holds them to."""

    @abstractmethod
    def agree(self, call: Call) -> None:
        """Return once every rank has laid open the same call. `Desynchronized` on every rank
        where one lays open another, or does not come within the stall time; `WorkerFailed` where
        one is gone. Either names the ranks."""

    @abstractmethod
    def tell(self, call: Call, numbers: Sequence[int]) -> list[tuple[int, ...]]:
        """`agree`, and every rank's numbers, in rank order."""


def disagreement(said: Mapping[int, str]) -> Desynchronized:
    """Ranks that lay open different calls. said: by rank, as in the whole job."""
    ranks_of: dict[str, list[int]] = {}
    for rank, words in said.items():
        ranks_of.setdefault(words, []).append(rank)
    told = "; ".join(f"{_named(ranks)}: {words}" for words, ranks in ranks_of.items())
    return Desynchronized(
        f"The ranks are not in the same call. Received: {told}. Make the same calls in the same "
        "order on every rank, with the same dtype, shape and arguments."
    )


def absence(call: Call, absent: Mapping[int, str], seconds: float) -> Desynchronized:
    """Ranks that never came. absent: by rank, the last call that each did make."""
    lasts = [
        f"rank {rank} {f'was last in {words}' if words else 'has made no call yet'}"
        for rank, words in absent.items()
    ]
    now = stall.give_up(list(absent))
    return stall.absence(call.words, list(absent), [*lasts, *now], seconds)


def departure(rank: int, doing: str) -> WorkerFailed:
    """A rank that is gone."""
    return WorkerFailed(
        f"Rank {rank} is gone. Received: its process ended while the others were in {doing}. "
        "Look at that rank's own message.",
        rank=rank,
    )


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
