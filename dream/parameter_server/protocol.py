"""How workers and servers connect, and what they send: a head, a few words, and a flat buffer.

Words are checked as they are read: who knows the way in may still send anything.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass
from enum import IntEnum
from math import prod
from typing import Any, Literal, NoReturn, Self, TypeGuard, final, get_args

from dream import cluster, stall
from dream._errors import DreamError, WorkerFailed, named, public_name
from dream._plain import Garbled, pack, unpack
from dream._topology import Cluster

Layout = tuple[tuple[int, tuple[int, ...]], ...]
"""A shard's parameters: the place of each in the model, and its shape."""
EpochKey = tuple[int, int]
"""A loader's number and its epoch."""
Purpose = Literal["work", "beat", "watch"]

_HEAD = struct.Struct("<B3xI6q2dQ")
_ITEM_SIZES = {"<f4": 4, "<f8": 8}
_MOST_TEXT = 1 << 24
_CHUNK = 1 << 20
_DOOR = "servers"
_CALL = "an answer of the servers"


class FrameKind(IntEnum):
    """REGISTER: here is my layout (and rank 0's parameters). ASK: a batch, please. PUSH: a
    gradient. PULL: the parameters, from a server that does not coordinate. SETTLE: leases that
    brought no gradient. RELEASE: leases that will bring none. REPORT, STATE: figures, the
    optimizer's state. BEAT: I am there. BYE: I have finished. ANSWER, WAIT (still at it), ERROR:
    from a server.
    """

    REGISTER = 1
    ASK = 2
    PUSH = 3
    PULL = 4
    SETTLE = 5
    RELEASE = 6
    REPORT = 7
    STATE = 8
    BEAT = 9
    BYE = 10
    ANSWER = 11
    WAIT = 12
    ERROR = 13


_LONG = (FrameKind.REGISTER, FrameKind.ANSWER)
"""Kinds whose words hold a model's tensors."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message between worker and server.

    numbers, reals: as the kind has it; text: packed words; size: bytes of the buffer that
    follows.
    """

    kind: int
    numbers: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    reals: tuple[float, float] = (0.0, 0.0)
    text: bytes = b""
    size: int = 0


@final
class FrameChannel:
    """A connection that carries frames. Frames arrive in order; OSError where the other end is
    gone."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._head = bytearray(_HEAD.size)

    def settimeout(self, seconds: float | None) -> None:
        self._connection.settimeout(seconds)

    def send(self, frame: Frame, data: memoryview | None = None) -> None:
        size = 0 if data is None else data.nbytes
        head = _HEAD.pack(frame.kind, len(frame.text), *frame.numbers, *frame.reals, size)
        head += frame.text
        if data is None or not size:
            self._connection.sendall(head)
            return
        sent = self._connection.sendmsg([head, data])
        if sent < len(head):
            self._connection.sendall(head[sent:])
            sent = len(head)
        if sent < len(head) + size:
            self._connection.sendall(data[sent - len(head) :])

    def readable(self, seconds: float) -> bool:
        """Wait until something can be read; False where nothing came in time."""
        return cluster.readable(self._connection, seconds)

    def receive(self) -> Frame:
        """Read the next frame, less its buffer, which `receive_into` must take."""
        self.receive_into(memoryview(self._head))
        kind, length, *rest = _HEAD.unpack(self._head)
        if length > _MOST_TEXT and kind not in _LONG:
            refuse_garbled(f"a frame of {length} bytes of words")
        text = bytes(self.receive_long(length))
        return Frame(kind, tuple(rest[:6]), (rest[6], rest[7]), text, rest[8])

    def receive_long(self, size: int) -> bytearray:
        """Read so many bytes; memory is taken as they come, not as they are announced."""
        data = bytearray()
        while len(data) < size:
            chunk = bytearray(min(_CHUNK, size - len(data)))
            self.receive_into(memoryview(chunk))
            data += chunk
        return data

    def receive_into(self, view: memoryview) -> None:
        while view:
            count = self._connection.recv_into(view)
            if not count:
                raise ConnectionResetError("the connection was closed")
            view = view[count:]

    def close(self) -> None:
        """Close from any thread; whoever reads or writes meanwhile gets an OSError."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


Welcome = Callable[[int, Purpose, FrameChannel], None]
"""Called with the rank that came, what it came for, and the connection, in a thread of its own."""


def listen(place: Cluster, welcome: Welcome) -> cluster.Door:
    """Have a server's door open to every rank of the job."""

    def admit(rank: int, purpose: str, connection: socket.socket) -> None:
        if rank not in range(place.world_size) or purpose not in get_args(Purpose):
            connection.close()
            return
        channel = FrameChannel(connection)
        threading.Thread(target=welcome, args=[rank, purpose, channel], daemon=True).start()

    return cluster.Door(place, _DOOR, admit)


def connect(place: Cluster, server: int, purpose: Purpose, seconds: float) -> FrameChannel:
    """Connect to a server by its rank. WorkerFailed where it is gone."""
    try:
        return FrameChannel(cluster.knock(place, _DOOR, server, purpose, seconds))
    except OSError as error:
        raise server_gone(server) from error


def server_gone(server: int) -> WorkerFailed:
    return WorkerFailed(
        f"The server of rank {server} is gone, and its parameters are lost. Received: its "
        "connection closed. See that rank's own error message; `snapshot_every=` and `dream run "
        "--max-restarts` let training resume from a snapshot.",
        rank=server,
    )


def wait_for_answer(server: int, channel: FrameChannel) -> Frame:
    """Wait for a server's rank, or for the workers that it waits for, which it names.
    `Desynchronized` where no answer comes in time."""
    awaited = [server]
    patience = stall.Patience(cluster.stall_seconds())
    channel.settimeout(patience.seconds)
    with contextlib.ExitStack() as reported:
        while True:
            if channel.readable(patience.slice):
                frame = channel.receive()
                if frame.kind != FrameKind.WAIT:
                    return frame
                awaited[:] = json.loads(frame.text or b"[]") or [server]
            if not patience.passed:
                reported.enter_context(stall.waiting(_CALL, lambda: awaited))
            if patience.over():
                where = stall.give_up(awaited) or ["nothing"]
                raise stall.absence(_CALL, awaited, where, patience.seconds)


@dataclass(frozen=True, slots=True)
class Registration:
    """The words of REGISTER. spec: for the server's optimizer; untrained: whatever else of a model
    starts as rank 0's."""

    layout: Layout
    dtype: str
    spec: bytes
    untrained: bytes

    @property
    def nbytes(self) -> int:
        """Of the parameters."""
        return sum(prod(shape) for _, shape in self.layout) * _ITEM_SIZES[self.dtype]

    def packed(self) -> bytes:
        return pack(astuple(self))

    @classmethod
    def of(cls, text: bytes) -> Self:
        layout, dtype, spec, untrained = said = _unpacked(text, 4)
        fits = _is_layout(layout) and isinstance(dtype, str) and dtype in _ITEM_SIZES
        if not fits or type(spec) is not bytes or type(untrained) is not bytes:
            refuse_garbled("a registration")
        return cls(*said)


@dataclass(frozen=True, slots=True)
class PushWords:
    """The words of PUSH. also: leases that the gradient is of, beside the last; settings:
    hyper-parameters, where they have changed; present: as in `ServerOptimizer.step`."""

    also: tuple[int, ...] = ()
    settings: bytes | None = None
    present: bytes = b""

    def packed(self) -> bytes:
        return b"" if self == PushWords() else pack(astuple(self))

    @classmethod
    def of(cls, text: bytes, parameters: int) -> Self:
        """parameters: how many the server holds."""
        if not text:
            return cls()
        also, settings, present = said = _unpacked(text, 3)
        fits = _are_counts(also) and (settings is None or type(settings) is bytes)
        if not fits or type(present) is not bytes or len(present) not in (0, parameters):
            refuse_garbled("a push")
        return cls(*said)


@dataclass(frozen=True, slots=True)
class ReturnedLeases:
    """The words of SETTLE and RELEASE."""

    key: EpochKey
    leases: tuple[int, ...]

    def packed(self) -> bytes:
        return pack(astuple(self))

    @classmethod
    def of(cls, text: bytes) -> Self:
        key, leases = said = _unpacked(text, 2)
        if not _are_counts(key) or len(key) != 2 or not _are_counts(leases):
            refuse_garbled("leases")
        return cls(*said)


def pack_error(error: DreamError) -> bytes:
    return pack((public_name(error), str(error)))


def unpack_error(text: bytes) -> DreamError:
    """Make an error as it was raised elsewhere."""
    name, words = _unpacked(text, 2)
    return named(str(name), str(words))


def refuse_garbled(expected: str) -> NoReturn:
    raise Garbled(
        f"This is not a message from a worker or server. Received: what is not {expected}. Start "
        "every rank with the same version of dream."
    )


def _unpacked(text: bytes, count: int) -> tuple[Any, ...]:
    said = unpack(text)
    if not isinstance(said, tuple) or len(said) != count:
        refuse_garbled(f"{count} words")
    return said


def _is_layout(said: object) -> TypeGuard[Layout]:
    return isinstance(said, tuple) and all(
        isinstance(entry, tuple)
        and len(entry) == 2
        and _are_counts(entry[:1])
        and _are_counts(entry[1])
        for entry in said
    )


def _are_counts(said: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(said, tuple) and all(type(x) is int and x >= 0 for x in said)
