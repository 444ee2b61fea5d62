"""A board between hosts: every rank tells every other in one small message."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from dream._errors import WorkerFailed
from dream.collectives.board import Board, absence, departure, disagreement
from dream.collectives.call import Call
from dream.collectives.links import Links
from dream.collectives.wait import Wait

_HEAD = struct.Struct("<QQHH")
"""turn, digest, number of bytes, number of numbers."""


@dataclass(frozen=True, slots=True)
class _Said:
    digest: int
    words: str
    numbers: tuple[int, ...]


@final
class Mesh(Board):
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
