"""Lay open what a rank is about to do, in words, before a byte of it moves. Ranks of one host use a
page that they share (`page`), others tell one another in small messages."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import final

from dream import stall
from dream._errors import Desynchronized, WorkerFailed, listed
from dream.collectives.links import Links, Wait

DIGEST_BITS = 48
MOST_BYTES = 240

Shape = Sequence[int | str]
"""A size that may differ between ranks is written "*"."""


@dataclass(frozen=True, slots=True)
class Call:
    """What must be the same on every rank, in words.

    digest: DIGEST_BITS bits of it, never 0. packed: the words as bytes, at most MOST_BYTES.
    """

    words: str
    digest: int = field(init=False)
    packed: bytes = field(init=False)

    def __post_init__(self) -> None:
        whole = self.words.encode()
        number = int.from_bytes(blake2b(whole, digest_size=DIGEST_BITS // 8).digest(), "little")
        object.__setattr__(self, "digest", number or 1)
        object.__setattr__(self, "packed", whole[:MOST_BYTES])


@dataclass(frozen=True, slots=True)
class Said:
    """A call but for the shapes, which a graph may not know before it runs.

    dtypes: one for each tensor.
    """

    name: str
    dtypes: Sequence[str] = ()
    arguments: Mapping[str, object] = field(default_factory=dict)

    def call(self, shapes: Sequence[Shape]) -> Call:
        """`all_reduce(op='sum') of float32 (2, 3)`."""
        inside = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        things = [
            f"{dtype} {in_words(shape)}"
            for dtype, shape in zip(self.dtypes, shapes, strict=bool(self.dtypes))
        ]
        of = f" of {len(things)} tensors:" if len(things) > 1 else " of" if things else ""
        return Call(f"{self.name}({inside}){of} {', '.join(things)}".rstrip())


def in_words(shape: Shape) -> str:
    sizes = ", ".join(map(str, shape))
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"


class Board(ABC):
    """The calls that a group of ranks is about to make, laid open. Every rank of it makes the same
    calls in the same order; it is this that the board holds them to."""

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
    told = "; ".join(f"{listed(ranks)}: {words}" for words, ranks in ranks_of.items())
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
        f"Rank {rank} is gone. Received: its process ended while the others were in {doing}. See "
        "that rank's own error message.",
        rank=rank,
    )


_HEAD = struct.Struct("<QQHH")
"""turn, digest, number of bytes, number of numbers."""


@dataclass(frozen=True, slots=True)
class _Said:
    digest: int
    words: str
    numbers: tuple[int, ...]


@final
class ConnectedBoard(Board):
    """The board on connections. ranks: as the job numbers them."""

    def __init__(self, links: Links, ranks: Sequence[int], name: str) -> None:
        self._links, self._ranks = links, ranks
        self._channel = f"board-{name}"
        self._turn = 0
        self._last = dict.fromkeys(ranks, "")

    def agree(self, call: Call) -> None:
        self.tell(call, ())

    def tell(self, call: Call, numbers: Sequence[int]) -> list[tuple[int, ...]]:
        self._turn += 1
        own = self._links.rank
        others = [rank for rank in self._ranks if rank != own]
        for rank in others:
            self._links.send(rank, self._channel, self._message(call, numbers))
        heard = {own: _Said(call.digest, call.packed.decode(errors="replace"), tuple(numbers))}
        for rank in others:
            heard[rank] = self._hear(rank, call)
        self._last = {rank: said.words for rank, said in heard.items()}
        if len({said.digest for said in heard.values()}) > 1:
            raise disagreement({rank: heard[rank].words for rank in self._ranks})
        return [heard[rank].numbers for rank in self._ranks]

    def _message(self, call: Call, numbers: Sequence[int]) -> bytes:
        head = _HEAD.pack(self._turn, call.digest, len(call.packed), len(numbers))
        return head + call.packed + struct.pack(f"<{len(numbers)}q", *numbers)

    def _hear(self, rank: int, call: Call) -> _Said:
        try:
            with self._links.wait(call.words, rank) as wait:
                return self._read(rank, wait)
        except TimeoutError:
            raise absence(call, {rank: self._last[rank]}, self._links.seconds) from None
        except WorkerFailed as error:
            raise departure(rank, call.words) from error

    def _read(self, rank: int, wait: Wait) -> _Said:
        head = self._links.receive(rank, self._channel, _HEAD.size, wait)
        turn, digest, length, count = _HEAD.unpack(head)
        body = self._links.receive(rank, self._channel, length + 8 * count, wait)
        if turn < self._turn:  # of a call that this rank gave up waiting in
            return self._read(rank, wait)
        numbers = struct.unpack_from(f"<{count}q", body, length)
        return _Said(digest, body[:length].decode(errors="replace"), numbers)
