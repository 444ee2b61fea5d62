"""Node 0's side of the connections between launchers: who comes, who is there, and why it ended.

Each host sends one message a beat over a connection that stays, and gets one back; what changes
is told to all. So the work grows with the hosts, and no message does once they have met.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, final

from dream.cluster.awake import AwakeClock
from dream.cluster.store import JoinHandler
from dream.launch.hosts.connection import JsonChannel
from dream.launch.hosts.judge import HostReport, Judge
from dream.launch.hosts.meeting import Meeting, Node
from dream.launch.output import SCREEN

_LOOK_SECONDS = 0.2
_FAREWELL_SECONDS = 3.0
_REFUSAL_SECONDS = 10.0
"""How long those that have not come yet have to hear that nobody can begin."""

_QUIET_SECONDS = 2.5
"""A host that has said nothing for so long is not waited for at the end."""


@dataclass(slots=True, eq=False)
class _Guest:
    """A connection, and whose it is once that was said."""

    channel: JsonChannel
    node: Node | None = None
    heard: float = 0.0


@final
class Hub(JoinHandler):
    """Serves from a thread of its own until closed. where: its address, for messages."""

    def __init__(self, meeting: Meeting, where: str, seconds: float) -> None:
        self._meeting = meeting
        self._where = where
        self._meet_until = time.monotonic() + seconds
        self._clock = AwakeClock()
        self._judge: Judge | None = None
        self._guests: dict[int, _Guest] = {}
        self._state: dict[str, Any] = {}
        """What every host has been told, in that order; who comes back is told it again."""

        self._farewells: set[str] = set()
        self._leaving: float | None = None
        self._arrivals: SimpleQueue[socket.socket] = SimpleQueue()
        self._woken, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._looked = 0.0
        self.messages = 0
        """How many have come."""

        self._thread = threading.Thread(target=self._run, name="dream-hub", daemon=True)
        self._thread.start()

    def take(self, connection: socket.socket) -> None:
        if self._thread.is_alive():
            self._arrivals.put(connection)
            self._wake()
        else:
            connection.close()

    def refused(self, address: str) -> None:
        if not self._meeting.complete and self._meeting.stranger(address):
            text = f"A host came without this job's DREAM_TOKEN, and was refused: {address}."
            SCREEN.say(text)

    def close(self) -> None:
        """Stay until the others have heard how it ended, those that can."""
        if self._leaving is None:
            refusing = self._meeting.refusal and not self._meeting.late
            seconds = _REFUSAL_SECONDS if refusing else _FAREWELL_SECONDS
            self._leaving = time.monotonic() + seconds
            self._wake()
        self._thread.join()
        self._waker.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it has seen by itself that it is over
            self._waker.send(b"1")

    def _run(self) -> None:
        try:
            while not self._over():
                for key, events in self._selector.select(_LOOK_SECONDS):
                    self._serve(key.data, events)
                self._look()
        finally:
            for key in list(self._selector.get_map().values()):
                if isinstance(key.data, _Guest):
                    key.data.channel.close()
            for guest in self._arrived():
                guest.channel.close()
            self._selector.close()
            self._woken.close()

    def _arrived(self) -> Iterator[_Guest]:
        with contextlib.suppress(Empty):
            while True:
                yield _Guest(JsonChannel(self._arrivals.get_nowait()))

    def _over(self) -> bool:
        if self._leaving is None:
            return False
        if time.monotonic() > self._leaving:
            return True
        if self._meeting.refusal and not self._meeting.late:  # some may be just about to come
            return len(self._farewells) >= self._meeting.nnodes
        now = self._clock.seconds()
        return all(now - guest.heard > _QUIET_SECONDS for guest in self._guests.values())

    def _serve(self, guest: _Guest | None, events: int) -> None:
        if guest is None:
            self._woken.recv(4096)
            for arrived in self._arrived():
                self._watch(arrived)
            return
        try:
            if events & selectors.EVENT_READ:
                for kind, content in guest.channel.receive():
                    self._hear(guest, kind, content)
            elif events & selectors.EVENT_WRITE:
                guest.channel.flush()
                self._watch(guest)
        except (OSError, KeyError, TypeError, ValueError):
            self._lose(guest)

    def _hear(self, guest: _Guest, kind: str, content: Any) -> None:
        self.messages += 1
        now = self._clock.seconds()
        if kind == "join":
            self._join(guest, content)
        if guest.node is None:
            return
        number, guest.heard = guest.node.number, now
        if self._judge is not None:
            self._judge.heard(number, now)
        if kind == "beat":
            self._send(guest, "beat", "" if self._meeting.complete else self._meeting.missing)
        elif kind == "bye":
            self._farewells.add(guest.node.launcher)
            self._meeting.leave(number)
            self._forget(guest)
        elif kind == "done" and self._judge is not None:
            self._judge.done(number, HostReport.read(content))
        elif kind == "report" and self._judge is not None:
            self._judge.report(number, HostReport.read(content), now)

    def _join(self, guest: _Guest, content: Any) -> None:
        if self._meeting.comes_again(content):
            self._welcome(guest, content)
            return
        node = self._meeting.join(content)
        if node is None:
            known = content if isinstance(content, dict) else {}
            self._farewells.add(str(known.get("launcher")))
            reason = self._meeting.refusal or (
                f"The job has begun already. Received: --node-rank {known.get('number')} again, at "
                f"{self._where}. Give every host its own, or another job another --master-port."
            )
            self._send(guest, "refused", [reason, self._meeting.late])
            return
        before = self._guests.get(node.number)
        self._guests[node.number] = guest
        guest.node = node
        if before is not None and before is not guest:
            self._forget(before)
        for kind, told in self._state.items():
            self._send(guest, kind, told)

    def _welcome(self, guest: _Guest, content: Any) -> None:
        """One of the job's next start. Where it is one more host, have the others save for it."""
        node, wrong = self._meeting.newcomer(content)
        if wrong:
            self._send(guest, "refused", [wrong, False])
            return
        if node is not None and self._judge is not None and not self._judge.asking:
            joins = HostReport((), f"{node} joins", stopped=True, changes=True)
            self._judge.report(0, joins, self._clock.seconds())
        self._lose(guest)  # it asks until it finds our next hub

    def _look(self) -> None:
        """At the time, and whether there is something that all are to hear."""
        now = self._clock.seconds()
        if now - self._looked < _LOOK_SECONDS / 2:
            return
        self._looked = now
        if self._judge is None:
            self._look_at_meeting(now)
        elif not self._settled:
            self._look_at_job(self._judge, now)

    def _look_at_meeting(self, now: float) -> None:
        meeting = self._meeting
        meeting.look()
        if meeting.complete:
            nodes = [meeting.nodes[number] for number in sorted(meeting.nodes)]
            self._tell("agreed", [node.write() for node in nodes])
            timeout = max(node.node_timeout for node in nodes)
            self._judge = Judge({node.number: str(node) for node in nodes}, timeout, now)
        elif time.monotonic() > self._meet_until:
            meeting.time_is_up(self._where)
        if meeting.refusal and "refused" not in self._state:
            self._tell("refused", [meeting.refusal, meeting.late])

    @property
    def _settled(self) -> bool:
        return "verdict" in self._state or "done" in self._state

    def _look_at_job(self, judge: Judge, now: float) -> None:
        left = judge.left
        if left is not None and "left" not in self._state:
            self._tell("left", HostReport.of([left]).write())
        if judge.all_done:
            self._tell("done", None)
            return
        verdict = judge.verdict(now)
        if judge.asking and "asked" not in self._state:
            self._tell("asked", None)
        if verdict is not None:
            self._tell("verdict", verdict.write())

    def _tell(self, kind: str, content: object) -> None:
        self._state[kind] = content
        for guest in list(self._guests.values()):
            self._send(guest, kind, content)

    def _send(self, guest: _Guest, kind: str, content: object) -> None:
        guest.channel.send(kind, content)
        self._watch(guest)

    def _watch(self, guest: _Guest) -> None:
        """Hear of what it says, and of when it takes more, where something is kept for it."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if guest.channel.waiting else 0)
        known = self._selector.get_map().get(guest.channel)
        if known is None:
            self._selector.register(guest.channel, events, guest)
        elif known.events != events:
            self._selector.modify(guest.channel, events, guest)

    def _lose(self, guest: _Guest) -> None:
        """Its connection has ended without a farewell."""
        node = guest.node
        self._forget(guest)
        if node is None or node.number in self._guests:
            return
        self._meeting.leave(node.number)
        if self._judge is not None:
            self._judge.closed(node.number, self._clock.seconds())

    def _forget(self, guest: _Guest) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(guest.channel)
        guest.channel.close()
        if guest.node is not None and self._guests.get(guest.node.number) is guest:
            del self._guests[guest.node.number]
        guest.node = None
