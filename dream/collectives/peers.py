"""From one rank to another: a parcel says what it is, is accepted, and follows.

Who sends waits until the other rank is ready to receive (as MPI's synchronous mode does), so a
call without its counterpart is found out on both sides. Without the check it does not wait.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

from dream._errors import Desynchronized
from dream.collectives.links import Links, Wait

_HEAD = struct.Struct("<?B16sBQ")
"""whether an answer is waited for, length of the dtype's name, the name, dims, bytes."""
_ANSWER = struct.Struct("<?H")


@dataclass(frozen=True, slots=True)
class Parcel:
    """A tensor's bytes, in row-major order, and what they are."""

    dtype: str
    shape: tuple[int, ...]
    data: bytearray | memoryview

    @property
    def words(self) -> str:
        return f"{self.dtype} {self.shape}"


Expected = tuple[str, tuple[int, ...]] | None
"""The dtype and shape that alone will do, where it matters."""


@final
class Peers:
    """Sends and receives among the ranks of a group. ranks: as the job numbers them."""

    def __init__(self, links: Links, ranks: Sequence[int], name: str, *, check: bool) -> None:
        self._links, self._ranks, self._check = links, ranks, check
        self._there, self._back = f"parcels-{name}", f"answers-{name}"
        self._lines: dict[tuple[str, int], _Line] = {}
        self._sent = 0

    @property
    def sent(self) -> int:
        """Bytes of tensors sent so far."""
        return self._sent

    def send(self, parcel: Parcel, to: int) -> Future[None]:
        return self._line("send", to).submit(lambda: self._send(parcel, self._ranks[to]))

    def receive(self, source: int, expected: Expected) -> Future[Parcel]:
        return self._line("receive", source).submit(
            lambda: self._receive(self._ranks[source], expected)
        )

    def send_now(self, parcel: Parcel, to: int) -> None:
        self._line("send", to).run(lambda: self._send(parcel, self._ranks[to]))

    def receive_now(self, source: int, expected: Expected) -> Parcel:
        parcel: Parcel = self._line("receive", source).run(
            lambda: self._receive(self._ranks[source], expected)
        )
        return parcel

    def _line(self, direction: str, rank: int) -> _Line:
        return self._lines.setdefault((direction, rank), _Line())

    def _send(self, parcel: Parcel, to: int) -> None:
        name = parcel.dtype.encode()
        shape = struct.pack(f"<{len(parcel.shape)}q", *parcel.shape)
        size = len(parcel.data)
        head = _HEAD.pack(self._check, len(name), name, len(parcel.shape), size)
        if self._check:
            self._links.send(to, self._there, head + shape)
            self._await_answer(parcel, to)
            self._links.send(to, self._there, parcel.data)
        else:
            self._links.send(to, self._there, head + shape, parcel.data)
        self._sent += size

    def _await_answer(self, parcel: Parcel, to: int) -> None:
        try:
            with self._links.wait(f"send() of {parcel.words}", to) as wait:
                answer = self._links.receive(to, self._back, _ANSWER.size, wait)
                accepted, length = _ANSWER.unpack(answer)
                reason = self._links.receive(to, self._back, length, wait).decode()
        except TimeoutError:
            raise self._links.late(to, f"received the {parcel.words} sent to it") from None
        if not accepted:
            raise Desynchronized(reason)

    def _receive(self, source: int, expected: Expected) -> Parcel:
        try:
            with self._links.wait("receive()", source) as wait:
                parcel, reason = self._received(source, expected, wait)
        except TimeoutError:
            raise self._links.late(source, "sent what is waited for") from None
        if reason:
            raise Desynchronized(reason)
        return parcel

    def _received(self, source: int, expected: Expected, wait: Wait) -> tuple[Parcel, str]:
        """What came, and what is wrong with it."""
        head = self._links.receive(source, self._there, _HEAD.size, wait)
        asks, length, name, dims, size = _HEAD.unpack(head)
        shape = self._links.receive(source, self._there, 8 * dims, wait)
        parcel = Parcel(name[:length].decode(), struct.unpack(f"<{dims}q", shape), bytearray(size))
        reason = self._objection(parcel, source, expected)
        if asks:
            said = reason.encode()
            self._links.send(source, self._back, _ANSWER.pack(not reason, len(said)) + said)
        if not asks or not reason:
            self._links.receive_into(source, self._there, memoryview(parcel.data), wait)
        return parcel, reason

    def _objection(self, parcel: Parcel, source: int, expected: Expected) -> str:
        if expected is None or expected == (parcel.dtype, parcel.shape):
            return ""
        return (
            f"A send and its receive differ. Received: rank {source} sends {parcel.words}, rank "
            f"{self._links.rank} expects {expected[0]} {expected[1]}. Make them the same, or "
            "receive without like=."
        )


@final
class _Line:
    """One direction with one rank: what is begun first is done first. A thread is taken only
    for what need not be waited for."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None
        self._lock = threading.Lock()

    def submit(self, act: Callable[[], Any]) -> Future[Any]:
        with self._lock:
            self._pool = self._pool or ThreadPoolExecutor(1, "dream-peer")
            self._last = self._pool.submit(act)
            return self._last

    def run(self, act: Callable[[], Any]) -> Any:
        if self._last is None or self._last.done():
            return act()
        return self.submit(act).result()
