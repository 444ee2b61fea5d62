"""A standing connection between two launchers, kept up for as long as there is somebody at its end.

Messages are JSON, a line each. Nothing blocks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

from dream._errors import DreamError
from dream.cluster.awake import AwakeClock

_LONGEST_LINE = 1 << 20
"""Bytes. The facts of 256 hosts, the longest of all messages, are a tenth of it."""

_AT_ONCE = 1 << 16
_ENDED = (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)

Message = tuple[str, Any]
BEAT_SECONDS = 1.0
_LOOK_SECONDS = 0.2
_PAUSE_SECONDS = 0.1
_FAREWELL_SECONDS = 0.5
Connect = Callable[[], socket.socket]


class Closed(ConnectionError):
    """The other side has closed the connection, or its system has since its process is gone."""


@final
class JsonChannel:
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
        """Send, and keep what the connection does not take now. Where it is closed, `receive` says
        so, once it has given what came before."""
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
        """Return the messages that have come since. Closed where no more can come, and what came
        before has been given."""
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


class Listener(ABC):
    """Who a line is kept for. It is called by the line's thread."""

    @abstractmethod
    def greeting(self, address: str) -> list[Message]:
        """Return what to say over a new connection. address: this side's; empty in a process."""

    @abstractmethod
    def hear(self, kind: str, content: Any) -> None:
        """Take what the other side said."""

    @abstractmethod
    def closed(self) -> None:
        """The other side has closed the connection; another is tried."""

    @abstractmethod
    def refused(self, error: DreamError) -> bool:
        """The other side does not take this one. Whether to try again all the same."""

    @abstractmethod
    def look(self) -> float | None:
        """At the time, once in a while. How long the other side may be silent before another
        connection is tried; None once nothing more is awaited of it."""


@final
class Line:
    """Keeps a connection to another host open: makes it anew where it breaks.

    connect: a new connection, OSError where there is none now; DreamError where this side is
    not taken.
    """

    def __init__(self, connect: Connect, listener: Listener) -> None:
        self._connect = connect
        self._listener = listener
        self._clock = AwakeClock()
        self._channel: JsonChannel | None = None
        self._tried = self._heard = self._beat_at = float("-inf")
        self._closing = False
        self._woken, self._waker = socket.socketpair()
        self.trouble = ""
        """Why there is no connection, as last seen."""

        self._thread = threading.Thread(target=self._run, name="dream-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def now(self) -> float:
        """By the clock that stands still where this process does."""
        return self._clock.seconds()

    @property
    def silence(self) -> float:
        """Seconds for which nothing has come; endless while there is no connection."""
        return float("inf") if self._channel is None else self.now - self._heard

    def send(self, kind: str, content: object) -> None:
        """Now, from any thread. The listener's greeting says it again where it is lost."""
        channel = self._channel
        if channel is not None:
            channel.send(kind, content)

    def close(self) -> None:
        """Say goodbye; not to one that does not answer, which the thread may be calling yet."""
        self._closing = True
        with contextlib.suppress(OSError):  # the thread has ended by itself
            self._waker.send(b"1")
        self._thread.join(_FAREWELL_SECONDS)
        if not self._thread.is_alive():
            self._waker.close()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn(self._listener.look())
            self._say_goodbye()
        finally:
            self._drop()
            self._woken.close()

    def _turn(self, patience: float | None) -> None:
        try:
            if patience is not None and self._is_to_try(patience):
                self._try()
            self._await_news()
            if self._channel is not None:
                self._channel.flush()
                for kind, content in self._channel.receive():
                    self._heard = self.now
                    self._listener.hear(kind, content)
                self._beat()
        except Closed:
            self.trouble = "its launcher was there, and is gone"
            self._drop()
            self._listener.closed()
        except OSError as error:  # merely cut, as it seems
            self.trouble = str(error)
            self._drop()
        except DreamError as error:
            self.trouble = str(error)
            if not self._listener.refused(error):
                self._closing = True

    def _is_to_try(self, patience: float) -> bool:
        """Over one that fell silent a packet may be sent again much later than its way is free."""
        if self._channel is None:
            return self.now - self._tried > _PAUSE_SECONDS
        return self.now - max(self._heard, self._tried) > patience

    def _try(self) -> None:
        """The former connection is kept until there is another: what was said on it may arrive."""
        self._tried = self.now
        try:
            channel = JsonChannel(self._connect())
        except OSError as error:
            self.trouble = str(error)
            return
        self._drop()
        self._channel = channel
        self._heard, self._beat_at = self.now, float("-inf")
        for kind, content in self._listener.greeting(channel.own_address):
            channel.send(kind, content)

    def _await_news(self) -> None:
        """Until something comes, a beat is due, or it is time to look again."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        seconds = _LOOK_SECONDS
        if self._channel is not None:
            writing = select.POLLOUT if self._channel.waiting else 0
            poll.register(self._channel, select.POLLIN | writing)
            seconds = min(seconds, self._beat_at + BEAT_SECONDS - self.now)
        poll.poll(max(seconds, 0.0) * 1000)

    def _beat(self) -> None:
        if self._channel is not None and self.now - self._beat_at >= BEAT_SECONDS:
            self._beat_at = self.now
            self._channel.send("beat")

    def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _say_goodbye(self) -> None:
        limit = time.monotonic() + _FAREWELL_SECONDS / 2
        if self._channel is not None:
            self._channel.send("bye")
            while self._channel.waiting and time.monotonic() < limit:
                time.sleep(_PAUSE_SECONDS / 10)
                self._channel.flush()
