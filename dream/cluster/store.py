"""The key-value store that ranks find one another by: GET, PUT and DELETE over HTTP.

JOIN asks for a connection that stays, which is handed to whoever is `standing` by.

A key is `/TOKEN/SCOPE/NAME`; who does not know the token is refused. Horovod's core is a client
too: given the address `host:port/TOKEN` and the port once more, it asks for
`/TOKEN:port/SCOPE/NAME`. Answers are 200, or 404 for a key that is not there, as it expects.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from abc import ABC, abstractmethod

LARGEST_VALUE = 1 << 24
_LONGEST_LINE = 1 << 14
_REASONS = {200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found"}
_SECONDS_PER_REQUEST = 10.0


class Standing(ABC):
    """Who takes connections that stay."""

    @abstractmethod
    def take(self, connection: socket.socket) -> None:
        """One that has shown the token; it is the taker's from now on."""

    @abstractmethod
    def refused(self, address: str) -> None:
        """One came from there without the token."""


class Store(socketserver.ThreadingTCPServer):
    """Serves from a thread of its own until closed. One request a connection."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, token: str) -> None:
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Request)
        self._host = host
        self.values: dict[str, bytes] = {}
        self.port: int = self.server_address[1]
        self._token = token.encode()
        self.standing: Standing | None = None
        self._taken: set[socket.socket] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="dream-store", daemon=True)
        self._thread.start()

    def admits(self, word: str) -> bool:
        """Whether the first part of a path is the token, with or without Horovod's `:port`."""
        import hmac  # on use: clients do without its import

        bare = word.removesuffix(f":{self.port}").encode()
        return hmac.compare_digest(bare, self._token)

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):  # a call that wakes the thread, where it still waits
            socket.create_connection((self._host, self.port), timeout=1.0).close()
        self._thread.join(timeout=1.0)
        self.server_close()

    def hand_over(self, connection: socket.socket, standing: Standing) -> None:
        self._taken.add(connection)
        standing.take(connection.dup())

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        """A connection that was handed over is only let go of."""
        if request in self._taken:
            self._taken.remove(request)
            request.close()
        else:
            super().shutdown_request(request)

    def _accept(self) -> None:
        """serve_forever would look twice a second whether it is over, and end as late."""
        while not self._closing:
            try:
                request, address = self.get_request()
            except OSError:
                return
            self.process_request(request, address)


class _Request(socketserver.StreamRequestHandler):
    """One request, read by hand: http.server would cost every start its import."""

    server: Store
    timeout = _SECONDS_PER_REQUEST
    wbufsize = -1

    def handle(self) -> None:
        try:
            self._answer(*self._read())
        except (ValueError, OSError):
            return

    def _read(self) -> tuple[str, str, bytes]:
        method, path, _ = self.rfile.readline(_LONGEST_LINE).decode("latin-1").split()
        length = 0
        while line := self.rfile.readline(_LONGEST_LINE).strip():
            name, _, value = line.decode("latin-1").partition(":")
            if name.lower() == "content-length":
                length = int(value)
        if not 0 <= length <= LARGEST_VALUE:
            raise ValueError(length)
        return method, path, self.rfile.read(length)

    def _answer(self, method: str, path: str, body: bytes) -> None:
        token, _, key = path.lstrip("/").partition("/")
        standing = self.server.standing
        if not self.server.admits(token):
            if method == "JOIN" and standing is not None:
                standing.refused(self.client_address[0])
            self._send(403)
        elif method == "JOIN" and standing is not None:
            self._send(200)
            self.server.hand_over(self.connection, standing)
        elif not key or method not in ("GET", "PUT", "DELETE"):
            self._send(400)
        else:
            self._serve(method, key, body)

    def _serve(self, method: str, key: str, body: bytes) -> None:
        values = self.server.values
        if method == "PUT":
            values[key] = body
            self._send(200)
        elif method == "DELETE":
            values.pop(key, None)
            self._send(200)
        else:
            value = values.get(key)
            self._send(404 if value is None else 200, value or b"")

    def _send(self, status: int, body: bytes = b"") -> None:
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {len(body)}\r\n"
        self.wfile.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        self.wfile.flush()
