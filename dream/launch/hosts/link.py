"""What a launcher tells the others, and hears of them: the start that all agree on, and the verdict
that every host gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

from dream._errors import ConfigurationError, DreamError, WorkerFailed
from dream.cluster import startup_seconds
from dream.cluster.ports import LOOPBACK, is_loopback
from dream.launch.ending import Ending, find_cause
from dream.launch.hosts.connection import Connect, Line, Listener, Message
from dream.launch.hosts.judge import HostReport, JobVerdict, Judge, patience
from dream.launch.hosts.meeting import Node, absent

FAULT = "fault"
DONE = "done"
_ANSWER_SECONDS = 2.0
_QUIET_SECONDS = 2.5
"""More than two beats."""


@final
class HostLink(Listener):
    """A host's side of the talk with node 0's launcher.

    connect: a connection to node 0's hub. where: its address, for messages. farewell: what is
    left to do once this side has said goodbye.
    """

    def __init__(
        self, node: Node, connect: Connect, where: str, farewell: Callable[[], None]
    ) -> None:
        self._node = node
        self._where = where
        self._farewell = farewell
        self._news = threading.Condition()
        self._mine: dict[str, object] = {}
        """What this side has told."""

        self._told: dict[str, Any] = {}
        """What node 0 has told, and "verdict" too where this side had to find it alone."""

        self._error: DreamError | None = None
        self._patience = patience(node.node_timeout)
        self._judge: Judge | None = None
        self._event: Callable[[str], None] = lambda _: None
        self._closed = False
        self._line = Line(connect, self)
        self._line.start()

    @property
    def host(self) -> str:
        """This host, for messages to the others."""
        return str(self._node)

    @property
    def silent(self) -> bool:
        """Whether node 0 seems not to be there: a call of it would only take time."""
        return self._line.silence > _QUIET_SECONDS

    def agree(self) -> list[Node]:
        """Every host's facts, in node order, once all have come. Raises what every host is told
        where they cannot go together, or some do not come in time."""
        seconds = startup_seconds()
        limit = time.monotonic() + seconds
        counting = False
        with self._news:
            while not ("agreed" in self._told or "refused" in self._told or self._error):
                if "beat" in self._told and not counting:
                    counting = True  # node 0 is there: it counts the time, the same for every host
                    limit = time.monotonic() + seconds + _ANSWER_SECONDS
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
            detail = f"Nothing answers at {self._where}: {self._line.trouble or 'no answer'}. "
            return absent("0", self._node.nnodes, seconds, detail)
        return absent(missing, self._node.nnodes, seconds, f"Received at {self._where}. ")

    def listen(self, event: Callable[[str], None]) -> None:
        """Tell `event` FAULT once there is a verdict to ask for, DONE once every host is done."""
        with self._news:
            self._event = event
            told = list(self._told)
        for kind in told:
            self._pass_on(kind)

    def tell(self, told: str, endings: Sequence[Ending], *, stopped: bool = False) -> None:
        """Tell the other hosts what ended the job here, where no rank's failure did. stopped: a
        signal from outside, after which the others go on where the job can do with fewer."""
        leaves = stopped and self._node.hosts_change and self._node.number != 0
        report = replace(HostReport.of(endings, told, stopped=stopped), changes=leaves)
        self._say("report", report.write())

    def finished(self, endings: Sequence[Ending]) -> None:
        """Tell the other hosts that every rank here has ended well."""
        self._say("done", HostReport.of(endings).write())

    def verdict(self, endings: Sequence[Ending]) -> JobVerdict:
        """Tell what is known here, and wait for what every host is told: some seconds at most."""
        limit = time.monotonic() + 3 * self._patience + _ANSWER_SECONDS
        self._say("report", HostReport.of(endings).write())
        with self._news:
            while "verdict" not in self._told and time.monotonic() < limit:
                self.look()  # the line's thread may be trying to connect
                self._news.wait(0.2)
            if "verdict" in self._told:
                return JobVerdict.read(self._told["verdict"])
        cause = find_cause(endings)
        return JobVerdict(cause, "" if cause else "another host's ranks failed")

    def left(self) -> list[Ending]:
        """Return the rank that left first, of hosts where every rank has ended well."""
        told = self._told.get("left")
        return [] if told is None else list(HostReport.read(told).endings)

    def failed(self, error: BaseException) -> None:
        """Tell the other hosts that this launcher gives up, if they do not know why yet."""
        if "agreed" in self._told and not self._over:
            self.tell(f"the launcher of {self.host} failed: {type(error).__name__}: {error}", [])

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._line.close()
            self._farewell()

    def greeting(self, address: str) -> list[Message]:
        with self._news:
            if not self._node.address:
                own = LOOPBACK if is_loopback(address) else address
                self._node = replace(self._node, address=own)
            return [("join", self._node.write()), *self._mine.items()]

    def hear(self, kind: str, content: Any) -> None:
        with self._news:
            new = kind not in self._told
            self._told[kind] = content
            if kind == "agreed" and new:
                self._begin([Node.read(told) for told in content])
            if self._judge is not None:
                self._judge.heard(0, self._line.now)
            self._news.notify_all()
        if new:
            self._pass_on(kind)

    def _begin(self, nodes: list[Node]) -> None:
        timeout = max(node.node_timeout for node in nodes)
        self._patience = patience(timeout)
        if self._node.number != 0:
            judged = (0, self._node.number)
            hosts = {node.number: str(node) for node in nodes if node.number in judged}
            self._judge = Judge(hosts, timeout, self._line.now)

    def closed(self) -> None:
        if self._judge is not None:
            self._judge.closed(0, self._line.now)

    def refused(self, error: DreamError) -> bool:
        with self._news:
            if "agreed" in self._told:
                return True  # node 0 is gone, and another job has its port
            self._error = error
            self._news.notify_all()
            return False

    def look(self) -> float | None:
        """Whether node 0 is gone. While it is heard it alone says how the job ended."""
        with self._news:
            if self._over or "refused" in self._told:
                return None
            if self._judge is None:
                return self._patience
            now = self._line.now
            self._judge.heard(self._node.number, now)
            if self._line.silence <= self._patience:
                return self._patience
            verdict = self._judge.verdict(now)
            if verdict is None:
                return self._patience
            self._told["verdict"] = verdict.write()
            self._news.notify_all()
        self._say("report", HostReport((), verdict.lost).write())  # for a launcher that was stopped
        self._pass_on("verdict")
        return None

    @property
    def _over(self) -> bool:
        return "verdict" in self._told or "done" in self._told

    def _say(self, kind: str, content: object) -> None:
        with self._news:
            self._mine[kind] = content
            if self._judge is not None and kind == "report":
                self._judge.report(self._node.number, HostReport.read(content), self._line.now)
        self._line.send(kind, content)

    def _pass_on(self, kind: str) -> None:
        if kind in ("asked", "verdict"):
            self._event(FAULT)
        elif kind == "done":
            self._event(DONE)
