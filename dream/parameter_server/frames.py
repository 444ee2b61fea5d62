"""What workers and servers send one another: a head, a few words, and a flat buffer."""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import final

from dream import cluster
from dream.parameter_server.words import garbled

_HEAD = struct.Struct("<B3xI6q2dQ")


class Kind(IntEnum):
    """What a frame asks for or answers.

    REGISTER: here is my layout (and rank 0's parameters). ASK: a batch, please. PUSH: a gradient.
    PULL: the parameters, from a server that does not coordinate. SETTLE: leases that brought no
    gradient. RELEASE: leases that will bring none. REPORT, STATE: figures, the optimizer's state.
    BEAT: I am there. BYE: I have finished. ANSWER, WAIT (still at it), ERROR: from a server.
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


_MOST_TEXT = 1 << 24
_LONG = (Kind.REGISTER, Kind.ANSWER)
"""Kinds whose words hold a model's tensors."""
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """numbers, reals: as the kind has it; text: bytes of whatever it needs beside; size: bytes of
    the buffer that follows."""

    kind: int
    numbers: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    reals: tuple[float, float] = (0.0, 0.0)
    text: bytes = b""
    size: int = 0


@final
class Channel:
    """One connection. Frames arrive in order; OSError where the other end is gone."""

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

    def comes(self, seconds: float) -> bool:
        """Whether something can be read, waited for."""
        return cluster.readable(self._connection, seconds)

    def receive(self) -> Frame:
        """The next frame, less its buffer, which `receive_into` must take."""
        self.receive_into(memoryview(self._head))
        kind, length, *rest = _HEAD.unpack(self._head)
        if length > _MOST_TEXT and kind not in _LONG:
            garbled(f"a frame of {length} bytes of words")
        text = bytes(self.receive_long(length))
        return Frame(kind, tuple(rest[:6]), (rest[6], rest[7]), text, rest[8])

    def receive_long(self, size: int) -> bytearray:
        """So many bytes; memory is taken as they come, not as they are announced."""
        data = bytearray()
        while len(data) < size:
            piece = bytearray(min(_PIECE, size - len(data)))
            self.receive_into(memoryview(piece))
            data += piece
        return data

    def receive_into(self, view: memoryview) -> None:
        while view:
            count = self._connection.recv_into(view)
            if not count:
                raise ConnectionResetError("the connection was closed")
            view = view[count:]

    def close(self) -> None:
        """From any thread; whoever reads or writes meanwhile gets an OSError."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
