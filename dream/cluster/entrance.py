"""Who comes in at a port that strangers can reach: nobody is given more than a place in a short
row, some bytes of memory and some seconds before having shown that they know the word."""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import final

from dream.cluster.token import same

MOST_STRANGERS = 64
"""Connections that have not shown the word yet. One more, and the one that came first goes."""
MOST_KNOWN = 512
"""Connections that have, and are not done: more wait in the system's own row."""
STRANGER_SECONDS = 10.0
KNOWN_SECONDS = 30.0
"""From the first byte to the last, however they come."""
_PIECE = 1 << 16
_AT_ONCE = 16
_PAUSE = 0.05
_HELLO = struct.Struct("<32sIH")
_LONGEST = 1024
Welcome = Callable[[int, str, socket.socket], None]
"""Called with the rank that came, what for, and the connection. It must not wait."""


class Refused(Exception):
    """The connection is to be closed."""


class Visit(ABC):
    """One connection, as far as it has come. All of it runs in the entrance's thread, so nothing
    in it may wait. known: whether it has shown the word; address: of the
    host that it comes from."""

    known = False
    address = ""

    @property
    @abstractmethod
    def wants(self) -> int:
        """How many bytes to read at most; 0 once all has been said."""

    @abstractmethod
    def hear(self, data: bytes) -> bytes | None:
        """Take what was said. Return an answer, after which the connection is closed. `Refused`
        closes it at once."""

    def admit(self, connection: socket.socket) -> None:
        """All has been said, and there was no answer: the connection is handed over."""
        raise NotImplementedError


@dataclass(eq=False, slots=True)
class _Caller:
    connection: socket.socket
    visit: Visit
    since: float = field(default_factory=time.monotonic)
    answer: memoryview | None = None

    @property
    def deadline(self) -> float:
        return self.since + (KNOWN_SECONDS if self.visit.known else STRANGER_SECONDS)


@final
class Entrance:
    """Serves a listening socket from one thread until closed. receive: a visit for each that
    comes."""

    def __init__(self, listener: socket.socket, receive: Callable[[], Visit], name: str) -> None:
        self._listener, self._receive = listener, receive
        self._callers: dict[_Caller, None] = {}
        self._selector = selectors.DefaultSelector()
        self._bell, self._wake = socket.socketpair()
        self._closing = False
        self._accepts = False
        listener.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Idempotent. What was admitted stays open."""
        self._closing = True
        with suppress(OSError):
            self._wake.send(b"x")
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._accept_or_wait()
                for key, _ in self._selector.select(self._patience()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _Caller):
                        self._go_on(key.data)
                self._drop_the_late()
        finally:
            for caller in list(self._callers):
                self._end(caller)
            self._selector.close()
            for held in (self._listener, self._bell, self._wake):
                held.close()

    def _accept_or_wait(self) -> None:
        """With as many inside as there may be, the others wait outside."""
        room = sum(caller.visit.known for caller in self._callers) < MOST_KNOWN
        if room and not self._accepts:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._accepts and not room:
            self._selector.unregister(self._listener)
        self._accepts = room

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:  # no descriptor is left
                if not self._drop_a_stranger():
                    time.sleep(_PAUSE)
                return
            connection.setblocking(False)
            caller = _Caller(connection, self._receive())
            caller.visit.address = address[0] if address else ""  # none of a socket without a file
            self._callers[caller] = None
            self._selector.register(connection, selectors.EVENT_READ, caller)
            self._go_on(caller)  # who knows the word has said it by now, and is no stranger
            if self._strangers() > MOST_STRANGERS:
                self._drop_a_stranger()

    def _go_on(self, caller: _Caller) -> None:
        if caller not in self._callers:  # dropped meanwhile
            return
        try:
            if caller.answer is None:
                self._hear(caller)
            if caller.answer is not None:
                self._answer(caller, caller.answer)
        except BlockingIOError:
            return
        except (OSError, ValueError, Refused):
            self._end(caller)

    def _hear(self, caller: _Caller) -> None:
        visit = caller.visit
        while caller.answer is None:
            if not visit.wants:
                self._hand_over(caller)
                return
            data = caller.connection.recv(min(visit.wants, _PIECE))
            if not data:
                raise Refused
            answer = visit.hear(data)
            if answer is not None:
                caller.answer = memoryview(answer)
                self._selector.modify(caller.connection, selectors.EVENT_WRITE, caller)

    def _answer(self, caller: _Caller, left: memoryview) -> None:
        while left:
            left = caller.answer = left[caller.connection.send(left) :]
        self._end(caller)

    def _hand_over(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        del self._callers[caller]
        caller.connection.setblocking(True)
        caller.visit.admit(caller.connection)

    def _end(self, caller: _Caller) -> None:
        if caller in self._callers:
            del self._callers[caller]
            self._selector.unregister(caller.connection)
        with suppress(OSError):  # a forked child may hold the socket too: it is over for all
            caller.connection.shutdown(socket.SHUT_RDWR)
        caller.connection.close()

    def _strangers(self) -> int:
        return sum(not caller.visit.known for caller in self._callers)

    def _drop_a_stranger(self) -> bool:
        """Drop the one that came first. Whether there was one."""
        for caller in self._callers:
            if not caller.visit.known:
                self._end(caller)
                return True
        return False

    def _patience(self) -> float | None:
        if not self._callers:
            return None
        nearest = min(caller.deadline for caller in self._callers)
        return max(0.0, nearest - time.monotonic())

    def _drop_the_late(self) -> None:
        """After what they have said was heard: this thread may itself have been kept waiting."""
        now = time.monotonic()
        for caller in [caller for caller in self._callers if caller.deadline <= now]:
            self._go_on(caller)
            if caller in self._callers:
                self._end(caller)


def new_word() -> str:
    return os.urandom(16).hex()


def greet(connection: socket.socket, word: str, rank: int, purpose: str) -> None:
    """Say the first words. There is no answer: who is turned away finds the connection closed."""
    name = purpose.encode()
    connection.sendall(_HELLO.pack(word.encode(), rank, len(name)) + name)


def expect(listener: socket.socket, word: str, welcome: Welcome, name: str) -> Entrance:
    """Have all that come to a listening socket greeted: who knows the word is welcome."""
    return Entrance(listener, lambda: _Greeting(word.encode(), welcome), name)


@final
class _Greeting(Visit):
    def __init__(self, word: bytes, welcome: Welcome) -> None:
        self._word, self._welcome = word, welcome
        self._said = b""
        self._rank = self._length = 0

    @property
    def wants(self) -> int:
        return _HELLO.size + self._length - len(self._said)

    def hear(self, data: bytes) -> None:
        self._said += data
        if not self.known and len(self._said) >= _HELLO.size:
            word, self._rank, self._length = _HELLO.unpack(self._said[: _HELLO.size])
            self.known = same(word, self._word)
            if not self.known or self._length > _LONGEST:
                raise Refused

    def admit(self, connection: socket.socket) -> None:
        self._welcome(self._rank, self._said[_HELLO.size :].decode(), connection)
