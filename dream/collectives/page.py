"""A board in memory that the ranks of one host share.

Each rank has a slot for odd calls and one for even ones: nobody can be more than one call ahead,
since each call waits for all. A slot's first word says which call it is and what, in one store
that is never torn; numbers and words beside it are written before.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

from dream import stall
from dream.collectives.board import (
    DIGEST_BITS,
    MOST_BYTES,
    Board,
    Call,
    absence,
    departure,
    disagreement,
)

_WORD = 8
_TEXT_WORDS = MOST_BYTES // _WORD + 1
"""The words of a call: a length, then bytes."""
_MARK = (1 << DIGEST_BITS) - 1
_TURNS = 1 << (64 - DIGEST_BITS)
_SPINS = 400
_SHORT, _LONG = 0.00005, 0.002
_LOOK = 0.05
_GATHER = 1.0
"""Seconds given to the others to come, once two ranks are seen to differ."""


def words_needed(ranks: int) -> int:
    """How many 8-byte words a page for so many ranks has."""
    return 2 * ranks * _slot(ranks)


def _slot(ranks: int) -> int:
    return 1 + 1 + _most_numbers(ranks) + _TEXT_WORDS


def _most_numbers(ranks: int) -> int:
    return ranks + 16


@final
class Page(Board):
    """The board on a page.

    memory: shared by all, zeros at first. ranks: as the job numbers them. place: this rank's.
    pids: every rank's process. seconds: how long a rank that does not come is waited for, while
    it lives.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        ranks: Sequence[int],
        place: int,
        pids: Sequence[int],
        seconds: float,
    ) -> None:
        self._bytes = memoryview(memory)
        self._memory = self._bytes.cast("Q")
        self._ranks, self._pids = ranks, pids
        self._seconds = seconds
        size, slot = len(ranks), _slot(len(ranks))
        self._slots = [[(half * size + one) * slot for one in range(size)] for half in (0, 1)]
        self._own = [slots[place] for slots in self._slots]
        self._others = [
            [at for one, at in enumerate(slots) if one != place] for slots in self._slots
        ]
        self._text = 2 + _most_numbers(size)
        self._turn = 0
        self._written: list[Call | None] = [None, None]
        self._yield = size > len(os.sched_getaffinity(0))

    def agree(self, call: Call) -> None:
        self._turn = turn = self._turn + 1
        half = turn & 1
        own, memory = self._own[half], self._memory
        if self._written[half] is not call:
            self._write(own, call)
            self._written[half] = call
        memory[own] = expected = ((turn % _TURNS) << DIGEST_BITS) | call.digest
        for other in self._others[half]:
            if memory[other] != expected:
                self._wait(call, expected, half)
                return

    def _write(self, own: int, call: Call) -> None:
        """The call in words, beside its digest."""
        at = own + self._text
        self._memory[at] = length = len(call.packed)
        self._bytes[(at + 1) * _WORD : (at + 1) * _WORD + length] = call.packed

    def tell(self, call: Call, numbers: Sequence[int]) -> list[tuple[int, ...]]:
        at = self._own[(self._turn + 1) & 1] + 1
        self._memory[at] = len(numbers)
        for offset, number in enumerate(numbers, start=1):
            self._memory[at + offset] = number
        self.agree(call)
        return [
            tuple(self._memory[slot + 2 : slot + 2 + self._memory[slot + 1]])
            for slot in self._slots[self._turn & 1]
        ]

    def _wait(self, call: Call, expected: int, half: int) -> None:
        """The slow way: not all had come when this rank did."""
        memory, others = self._memory, self._others[half]
        for spin in range(_SPINS):
            if all(memory[other] == expected for other in others):
                return
            if self._yield or spin & 15 == 15:
                os.sched_yield()
            if spin & 63 == 63 and self._differing(expected, half):
                break
        self._sleep(call, expected, half)

    def _sleep(self, call: Call, expected: int, half: int) -> None:
        with stall.waiting(call.words, lambda: self._awaited(half)):
            self._until_all_come(call, expected, half)

    def _until_all_come(self, call: Call, expected: int, half: int) -> None:
        look, nap, patience = time.monotonic(), _SHORT, stall.Patience(self._seconds)
        while not all(self._memory[other] == expected for other in self._others[half]):
            now = time.monotonic()
            if self._differing(expected, half):
                if self._given_up(half) and self._absent(half):
                    raise self._absence(call, half)
                raise self._disagreement(half, now + _GATHER)
            if now > look + _LOOK:
                look = now
                self._check_alive(call, expected, half)
            if patience.over():
                raise self._absence(call, half)
            time.sleep(nap)
            nap = min(nap * 1.5, _LONG)

    def _differing(self, expected: int, half: int) -> bool:
        """Whether some rank has laid open another call in this turn, or is past it."""
        turn = expected >> DIGEST_BITS
        return any(
            word != expected and 0 <= ((word >> DIGEST_BITS) - turn) % _TURNS < _TURNS // 2
            for word in (self._memory[other] for other in self._others[half])
            if word
        )

    def _disagreement(self, half: int, limit: float) -> Exception:
        """Once all have come, so that all say the same; or some have not in good time."""
        turn = self._turn % _TURNS
        while time.monotonic() < limit and any(
            self._memory[other] >> DIGEST_BITS != turn for other in self._others[half]
        ):
            time.sleep(_LONG)
        said = {}
        for rank, slot in zip(self._ranks, self._slots[half], strict=True):
            word = self._memory[slot]
            if word >> DIGEST_BITS == turn:
                said[rank] = self._said(slot) if word & _MARK else "gave up waiting for a rank"
            elif word and ((word >> DIGEST_BITS) - turn) % _TURNS < _TURNS // 2:
                said[rank] = "is calls ahead"
        return disagreement(said)

    def _check_alive(self, call: Call, expected: int, half: int) -> None:
        for rank, pid, slot in zip(self._ranks, self._pids, self._slots[half], strict=True):
            if self._memory[slot] != expected and not alive(pid):
                if self._memory[slot] == expected:  # it came, then left
                    continue
                raise departure(rank, call.words)

    def _absence(self, call: Call, half: int) -> Exception:
        """Give up, and leave word of it for whoever comes after all."""
        absent = {
            self._ranks[place]: self._said(self._slots[1 - half][place])
            for place in self._absent(half)
        }
        self._memory[self._own[half]] = (self._turn % _TURNS) << DIGEST_BITS
        return absence(call, absent, self._seconds)

    def _absent(self, half: int) -> list[int]:
        """The places of those who have not come to this turn."""
        turn = self._turn % _TURNS
        words = [self._memory[slot] for slot in self._slots[half]]
        return [
            place
            for place, word in enumerate(words)
            if not word or 0 < (turn - (word >> DIGEST_BITS)) % _TURNS < _TURNS // 2
        ]

    def _awaited(self, half: int) -> list[int]:
        """The ranks of the job that have not come to this turn."""
        return [self._ranks[place] for place in self._absent(half)]

    def _given_up(self, half: int) -> bool:
        """Whether another rank has stopped waiting in this turn."""
        mark = (self._turn % _TURNS) << DIGEST_BITS
        return any(self._memory[other] == mark for other in self._others[half])

    def _said(self, slot: int) -> str:
        at = slot + self._text
        start = (at + 1) * _WORD
        return bytes(self._bytes[start : start + self._memory[at]]).decode(errors="replace")


def alive(pid: int) -> bool:
    """Whether a process still runs; one that waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")
