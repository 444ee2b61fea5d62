"""The first words on a connection between processes of a job: a word that the listener gave out,
who comes, and what for."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import final

from dream.cluster.entrance import Entrance, Refused, Visit
from dream.cluster.proof import same

_HELLO = struct.Struct("<32sIH")
_LONGEST = 1024

Welcome = Callable[[int, str, socket.socket], None]
"""Called with the rank that came, what for, and the connection. It must not wait."""


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
