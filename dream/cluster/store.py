"""The key-value store that ranks find one another by: GET, PUT and DELETE over HTTP.

A key is `/WORD/SCOPE/NAME`, where the word shows that the client knows the job's token; who does
not is refused before anything else of the request is read. Ranks show it without saying it, and are
answered likewise. Horovod's core is a client too, and says the token itself: given the address
`host:port/TOKEN` and the port once more, it asks for `/TOKEN:port/SCOPE/NAME`. Answers are 200, or
404 for a key that is not there, as it expects. JOIN asks for a connection that stays, which is
handed to whoever is `standing` by.
"""

from __future__ import annotations

import re
import socket
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from typing import final

from dream.cluster.entrance import Entrance, Refused, Visit
from dream.cluster.token import is_proof, proof_of_answer, proves, same

LARGEST_VALUE = 1 << 24
PROOF = "Dream-Proof"
"""The header of an answer that shows whose it is."""
_LONGEST_HEAD = 1 << 14
_EARLY = 8
"""Who was refused before anybody stood by, at most."""
_PIECE = 1 << 12
_HEAD_ENDS = re.compile(rb"\r?\n\r?\n")
_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found"}


class JoinHandler(ABC):
    """Who takes connections that stay."""

    @abstractmethod
    def take(self, connection: socket.socket) -> None:
        """One that has shown the token; it is the taker's from now on."""

    @abstractmethod
    def refused(self, address: str) -> None:
        """One came from there without the token."""


@final
class Store:
    """Serves from a thread of its own until closed. One request a connection. values: by key."""

    def __init__(self, host: str, port: int, token: str) -> None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
        self.values: dict[str, bytes] = {}
        self.port: int = listener.getsockname()[1]
        self._token = token.encode()
        self.standing: JoinHandler | None = None
        self._refused: deque[str] = deque(maxlen=_EARLY)
        self._entrance = Entrance(listener, lambda: _Request(self), "dream-store")

    def stand_by(self, handler: JoinHandler) -> None:
        """Hand connections that stay to this one, and tell it who was refused before."""
        self.standing = handler
        self._tell()

    def refuse(self, address: str) -> None:
        """One that wants to stay came without the token, perhaps before anybody stood by."""
        self._refused.append(address)
        self._tell()

    def _tell(self) -> None:
        with suppress(IndexError):
            while self.standing is not None:
                self.standing.refused(self._refused.popleft())

    def admits(self, word: str, method: str, key: str) -> bool:
        """Whether the first part of a path shows that the token is known: a proof of it, or itself
        with or without Horovod's `:port`."""
        if not self._token:
            return False
        if is_proof(word):
            return proves(word, self._token, method, key)
        return same(word.removesuffix(f":{self.port}"), self._token.decode())

    def shown(self, word: str, status: int, body: bytes) -> str:
        """Return what shows a client that asked by proof that this is the job's store."""
        return proof_of_answer(word, self._token, status, body) if is_proof(word) else ""

    def close(self) -> None:
        self._entrance.close()


@final
class _Request(Visit):
    """Answers one request, which is read by hand: http.server would cost every start its import."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._head = bytearray()
        self._method = self._word = self._key = ""
        self._body: bytearray | None = None
        self._length = 0

    @property
    def wants(self) -> int:
        if self._body is None:
            return min(_PIECE, _LONGEST_HEAD - len(self._head))
        return self._length - len(self._body)

    def hear(self, data: bytes) -> bytes | None:
        if self._body is not None:
            self._body += data
        else:
            self._head += data
            if not self.known and b"\n" in self._head and not self._admitted():
                if self._method == "JOIN":
                    self._store.refuse(self.address)
                return _answer(403)
            if not self._read_head():
                return None
        assert self._body is not None
        if len(self._body) < self._length or self._joins is not None:
            return None
        return self._serve(bytes(self._body[: self._length]))

    def admit(self, connection: socket.socket) -> None:
        assert self._joins is not None
        connection.sendall(self._answer(200))  # a new connection takes so little at once
        self._joins.take(connection)

    @property
    def _joins(self) -> JoinHandler | None:
        """Whom it wants to be handed to."""
        return self._store.standing if self._method == "JOIN" else None

    def _admitted(self) -> bool:
        """Whether the first line's path begins with the token."""
        line = self._head.partition(b"\n")[0].decode("latin-1").split()
        if len(line) != 3:
            raise Refused
        self._method, path, _ = line
        self._word, _, self._key = path.lstrip("/").partition("/")
        self.known = self._store.admits(self._word, self._method, self._key)
        return self.known

    def _read_head(self) -> bool:
        """Whether all of it is there."""
        end = _HEAD_ENDS.search(self._head)
        if end is None:
            if len(self._head) >= _LONGEST_HEAD:
                raise Refused
            return False
        for line in self._head[: end.start()].decode("latin-1").splitlines()[1:]:
            name, _, value = line.partition(":")
            if name.strip().lower() == "content-length":
                self._length = _size(value.strip())
        self._body = self._head[end.end() :]
        return True

    def _serve(self, body: bytes) -> bytes:
        values, method, key = self._store.values, self._method, self._key
        if not key or method not in ("GET", "PUT", "DELETE"):
            return self._answer(400)
        if method == "GET":
            value = values.get(key)
            return self._answer(404 if value is None else 200, value or b"")
        if method == "PUT":
            values[key] = body
        else:
            values.pop(key, None)
        return self._answer(200)

    def _answer(self, status: int, body: bytes = b"") -> bytes:
        return _answer(status, body, self._store.shown(self._word, status, body))


def _size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= LARGEST_VALUE):
        raise Refused
    return int(text)


def _answer(status: int, body: bytes = b"", shown: str = "") -> bytes:
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {len(body)}\r\n"
    if shown:
        head += f"{PROOF}: {shown}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body
