"""Messages over a standing connection between two launchers: JSON, a line each. Nothing blocks."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
from typing import Any, final

_LONGEST_LINE = 1 << 20
"""Bytes. The facts of 256 hosts, the longest of all messages, are a tenth of it."""

_AT_ONCE = 1 << 16
_ENDED = (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)

Message = tuple[str, Any]


class Closed(ConnectionError):
    """The other side has closed the connection, or its system has since its process is gone."""


@final
class Channel:
    """One side of a connection that has shown the token. Any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # a pair of sockets inside a process has no such option
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._sending = threading.Lock()
        self._unsent = b""
        self._received = b""

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def waiting(self) -> bool:
        """Whether something is still to be sent, once the connection takes it: by `flush`."""
        return bool(self._unsent)

    @property
    def own_address(self) -> str:
        """The address of this host that the connection goes by; empty inside a process."""
        name = self._connection.getsockname()
        return str(name[0]) if isinstance(name, tuple) else ""

    def send(self, kind: str, content: object = None) -> None:
        """What the connection does not take now is kept. Where it is closed, `receive` says so,
        once it has given what came before."""
        line = json.dumps([kind, content]).encode() + b"\n"
        with self._sending:
            self._unsent += line
        self.flush()

    def flush(self) -> None:
        with self._sending:
            while self._unsent:
                try:
                    sent = self._connection.send(self._unsent)
                except BlockingIOError:
                    return
                except OSError:
                    sent = len(self._unsent)
                self._unsent = self._unsent[sent:]

    def receive(self) -> list[Message]:
        """The messages that have come since. Closed where no more can come, and what came before
        has been given."""
        try:
            came = self._connection.recv(_AT_ONCE)
        except BlockingIOError:
            return []
        except OSError as error:
            raise _mapped(error) from error
        if not came:
            raise Closed("closed")
        *lines, self._received = (self._received + came).split(b"\n")
        if len(self._received) > _LONGEST_LINE:
            raise Closed("a line without an end")
        return [_message(line) for line in lines]

    def close(self) -> None:
        self._connection.close()


def _message(line: bytes) -> Message:
    try:
        kind, content = json.loads(line)
    except (ValueError, TypeError, RecursionError) as error:
        raise Closed("no message") from error
    return str(kind), content


def _mapped(error: OSError) -> OSError:
    """A connection that was ended by the other side is told from one that is merely cut."""
    return Closed(str(error)) if error.errno in _ENDED else error
