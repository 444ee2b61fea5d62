"""A launcher's connection to node 0's: the start is agreed on over it, it beats while ranks run,
and it brings the verdict that every host gives."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

from dream._errors import ConfigurationError, DreamError, WorkerFailed
from dream.cluster import startup_seconds
from dream.cluster._read import is_loopback
from dream.launch.address import LOOPBACK
from dream.launch.awake import AwakeClock
from dream.launch.channel import Channel, Closed
from dream.launch.ending import Ending, find_cause
from dream.launch.judge import Judge
from dream.launch.nodes import Node, absent
from dream.launch.verdict import Report, Verdict, patience

FAULT, DONE = "fault", "done"
BEAT_SECONDS = 1.0
_FAREWELL_SECONDS = 1.0
_PAUSE_SECONDS = 0.1
_LOOK_SECONDS = 0.2
_ANSWER_SECONDS = 2.0

Connect = Callable[[], socket.socket]


@final
class Link:
    """connect: a connection to node 0's hub, OSError where there is none now. where: its address,
    for messages. farewell: what is left to do once this side has said goodbye."""

    def __init__(
        self, node: Node, connect: Connect, where: str, farewell: Callable[[], None]
    ) -> None:
        self._node = node
        self._connect = connect
        self._where = where
        self._farewell = farewell
        self._clock = AwakeClock()
        self._news = threading.Condition()
        self._channel: Channel | None = None
        self._tried = self._heard = self._beat_at = float("-inf")
        self._mine: dict[str, object] = {}
        """What this side has told; it is told again over a new connection."""

        self._told: dict[str, Any] = {}
        """What node 0 has told, and "verdict" too where this side had to find it alone."""

        self._error: BaseException | None = None
        self._trouble = ""
        self._patience = patience(node.node_timeout)
        self._judge: Judge | None = None
        self._event: Callable[[str], None] = lambda _: None
        self._closing = False
        self._woken, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="dream-link", daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        """This host, for messages to the others."""
        return str(self._node)

    def agree(self) -> list[Node]:
        """Every host's facts, in node order, once all have come. Raises what every host is told
        where they cannot go together, or some do not come in time."""
        seconds = startup_seconds()
        limit = time.monotonic() + seconds + (BEAT_SECONDS if self._node.number == 0 else 0.0)
        with self._news:
            while not ("agreed" in self._told or "refused" in self._told or self._error):
                if time.monotonic() > limit:
                    raise WorkerFailed(self._absent(seconds))
                self._news.wait(0.2)
        if self._error is not None:
            raise self._error
        if "refused" in self._told:
            reason, late = self._told["refused"]
            raise (WorkerFailed if late else ConfigurationError)(reason)
        return [Node.read(content) for content in self._told["agreed"]]

    def _absent(self, seconds: float) -> str:
        missing = self._told.get("beat")
        if missing is None:
            detail = f"Nothing answers at {self._where}: {self._trouble or 'no answer'}. "
            return absent("0", self._node.nnodes, seconds, detail)
        return absent(missing, self._node.nnodes, seconds, f"Received at {self._where}. ")

    def listen(self, event: Callable[[str], None]) -> None:
        """Tell `event` FAULT once there is a verdict to ask for, DONE once every host is done."""
        with self._news:
            self._event = event
            told = list(self._told)
        for kind in told:
            self._pass_on(kind)

    def tell(self, told: str, endings: Sequence[Ending]) -> None:
        """Tell the other hosts what ended the job here, where no rank's failure did."""
        self._say("report", Report.of(endings, told).write())

    def finished(self, endings: Sequence[Ending]) -> None:
        """Tell the other hosts that every rank here has ended well."""
        self._say("done", Report.of(endings).write())

    def verdict(self, endings: Sequence[Ending]) -> Verdict:
        """Tell what is known here, and wait for what every host is told: some seconds at most."""
        limit = time.monotonic() + 3 * self._patience + _ANSWER_SECONDS
        self._say("report", Report.of(endings).write())
        with self._news:
            while "verdict" not in self._told and time.monotonic() < limit:
                self._news.wait(0.2)
            if "verdict" in self._told:
                return Verdict.read(self._told["verdict"])
        cause = find_cause(endings)
        return Verdict(cause, "" if cause else "another host's ranks failed")

    def left(self) -> list[Ending]:
        """The rank that left first, of hosts where every rank has ended well."""
        told = self._told.get("left")
        return [] if told is None else list(Report.read(told).endings)

    def failed(self, error: BaseException) -> None:
        """Tell the other hosts that this launcher gives up, if they do not know why yet."""
        if "agreed" in self._told and not self._over:
            self.tell(f"the launcher of {self.host} failed: {type(error).__name__}: {error}", [])

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._waker.send(b"1")
        self._thread.join()
        self._farewell()

    @property
    def _over(self) -> bool:
        return "verdict" in self._told or "done" in self._told

    def _say(self, kind: str, content: object) -> None:
        with self._news:
            self._mine[kind] = content
            channel = self._channel
            if self._judge is not None and kind == "report":
                report = Report.read(content)
                self._judge.report(self._node.number, report, self._clock.seconds())
        if channel is not None:
            with contextlib.suppress(OSError):  # the thread finds it closed too
                channel.send(kind, content)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
            self._say_goodbye()
        except DreamError as error:  # the token was refused
            with self._news:
                self._error = error
                self._news.notify_all()
        finally:
            if self._channel is not None:
                self._channel.close()
            self._woken.close()

    def _turn(self) -> None:
        try:
            if self._wants_connection():
                self._reconnect()
            self._await_news()
            if self._channel is not None:
                self._channel.flush()
                for kind, content in self._channel.receive():
                    self._hear(kind, content)
                self._beat()
        except Closed:
            self._lose()
        except OSError as error:  # merely cut, as it seems: the other side may come back
            self._trouble = str(error)
            self._drop()
        self._look()

    def _wants_connection(self) -> bool:
        """Over one that fell silent a packet may be sent again much later than its way is free."""
        now = self._clock.seconds()
        if self._over or "refused" in self._told:
            return False
        if self._channel is None:
            return now - self._tried > _PAUSE_SECONDS
        return now - max(self._heard, self._tried) > self._patience

    def _reconnect(self) -> None:
        """The former connection is kept until there is another: what was said on it may arrive."""
        self._tried = self._clock.seconds()
        try:
            channel = Channel(self._connect())
        except ConfigurationError as error:
            if "agreed" not in self._told:
                raise
            self._trouble = str(error)  # node 0 is gone, and another job has its port
            return
        except OSError as error:
            self._trouble = str(error)
            return
        self._drop()
        address = self._node.address or channel.own_address
        if is_loopback(address):
            address = LOOPBACK
        with self._news:
            self._node = replace(self._node, address=address)
            self._channel = channel
            said = [("join", self._node.write()), *self._mine.items()]
        self._heard, self._beat_at = self._clock.seconds(), float("-inf")
        for kind, content in said:
            channel.send(kind, content)

    def _await_news(self) -> None:
        """Until something comes, a beat is due, or it is time to look again."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        seconds = _LOOK_SECONDS
        if self._channel is not None:
            waiting = select.POLLOUT if self._channel.waiting else 0
            poll.register(self._channel, select.POLLIN | waiting)
            if not self._mine:
                seconds = self._beat_at + BEAT_SECONDS - self._clock.seconds()
        poll.poll(max(seconds, 0.0) * 1000)

    def _beat(self) -> None:
        now = self._clock.seconds()
        if self._channel is not None and now - self._beat_at >= BEAT_SECONDS:
            self._beat_at = now
            self._channel.send("beat")

    def _hear(self, kind: str, content: Any) -> None:
        self._heard = self._clock.seconds()
        with self._news:
            new = kind not in self._told
            self._told[kind] = content
            if kind == "agreed" and new:
                self._begin([Node.read(told) for told in content])
            if self._judge is not None:
                self._judge.heard(0, self._heard)
            self._news.notify_all()
        if new:
            self._pass_on(kind)

    def _begin(self, nodes: list[Node]) -> None:
        timeout = max(node.node_timeout for node in nodes)
        self._patience = patience(timeout)
        if self._node.number != 0:
            hosts = {number: str(nodes[number]) for number in (0, self._node.number)}
            self._judge = Judge(hosts, timeout, self._heard)

    def _pass_on(self, kind: str) -> None:
        if kind in ("asked", "verdict"):
            self._event(FAULT)
        elif kind == "done":
            self._event(DONE)

    def _lose(self) -> None:
        """Node 0's side has ended the connection."""
        self._trouble = "its launcher was there, and is gone"
        self._drop()
        if self._judge is not None:
            self._judge.closed(0, self._clock.seconds())

    def _drop(self) -> None:
        with self._news:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _look(self) -> None:
        """Whether node 0 is gone. While it is heard it alone says how the job ended."""
        now = self._clock.seconds()
        with self._news:
            if self._judge is None or self._over:
                return
            self._judge.heard(self._node.number, now)
            if self._channel is not None and now - self._heard <= self._patience:
                return
            verdict = self._judge.verdict(now)
            if verdict is None:
                return
            self._told["verdict"] = verdict.write()
            self._news.notify_all()
        self._say("report", Report((), verdict.lost).write())  # for a launcher that was stopped
        self._pass_on("verdict")

    def _say_goodbye(self) -> None:
        limit = time.monotonic() + _FAREWELL_SECONDS
        channel = self._channel
        with contextlib.suppress(OSError):
            if channel is not None:
                channel.send("bye")
            while channel is not None and channel.waiting and time.monotonic() < limit:
                time.sleep(_PAUSE_SECONDS / 10)
                channel.flush()
