"""What goes between launchers: real connections, and messages that are counted."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from dream._errors import ConfigurationError
from dream.cluster.store import Store
from dream.launch.hosts.connection import Closed, JsonChannel, Message
from dream.launch.hosts.hub import Hub
from dream.launch.hosts.judge import JobVerdict
from dream.launch.hosts.link import HostLink
from dream.launch.hosts.meeting import Meeting, Node

PATIENT = 300.0


def node(number: int, nnodes: int) -> Node:
    versions = {"dream": "1", "Python": "3.11"}
    return Node(number, nnodes, 1, f"host{number}", str(number), (1, 2), versions, 15.0, "10.0.0.1")


class Guest:
    """The other side of a hub's connection, which does as the test says."""

    def __init__(self, hub: Hub, number: int, nnodes: int) -> None:
        ours, theirs = socket.socketpair()
        hub.take(theirs)
        self.channel = JsonChannel(ours)
        self.channel.send("join", node(number, nnodes).write())

    def next(self) -> list[Message]:
        """What comes next, waited for."""
        assert select.select([self.channel], [], [], PATIENT)[0]
        return self.channel.receive()

    def until(self, kind: str) -> Any:
        """What it says of this kind, whatever comes before."""
        while True:
            for found, content in self.next():
                if found == kind:
                    return content


@pytest.fixture
def opened() -> Iterator[list[Hub]]:
    hubs: list[Hub] = []
    yield hubs
    for hub in hubs:
        hub.close()


def meet(opened: list[Hub], count: int) -> tuple[Hub, list[Guest]]:
    hub = Hub(Meeting(count, PATIENT), "here", PATIENT)
    opened.append(hub)
    guests = [Guest(hub, number, count) for number in range(count)]
    for guest in guests:
        guest.until("agreed")
    return hub, guests


@pytest.mark.parametrize("count", [2, 64])
def test_one_message_a_host_a_beat_and_one_back_whatever_the_hosts(
    opened: list[Hub], count: int
) -> None:
    hub, guests = meet(opened, count)
    before = hub.messages
    for _ in range(3):
        for guest in guests:
            guest.channel.send("beat")
        for guest in guests:
            assert guest.next() == [("beat", "")]
    assert hub.messages - before == 3 * count
    assert not select.select(guests_of(guests), [], [], 0)[0]
    for guest in guests:
        guest.channel.close()


def guests_of(guests: list[Guest]) -> list[JsonChannel]:
    return [guest.channel for guest in guests]


def test_a_launcher_beats_once_a_second(opened: list[Hub]) -> None:
    hub = Hub(Meeting(1, PATIENT), "here", PATIENT)
    opened.append(hub)
    link = HostLink(node(0, 1), to(hub), "here", lambda: None)
    assert link.agree() == [node(0, 1)]
    before, start = hub.messages, time.monotonic()
    while hub.messages < before + 3:
        time.sleep(0.01)
    assert time.monotonic() - start > 1.5
    link.close()


def to(hub: Hub) -> Callable[[], socket.socket]:
    """What connects a link to it."""

    def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        hub.take(theirs)
        return ours

    return connect


def test_a_launcher_that_fails_by_itself_tells_the_others(opened: list[Hub]) -> None:
    hub = Hub(Meeting(2, PATIENT), "here", PATIENT)
    opened.append(hub)
    other = Guest(hub, 0, 2)
    link = HostLink(node(1, 2), to(hub), "here", lambda: None)
    link.agree()
    link.failed(OSError("no file descriptors"))
    reason = "the launcher of node 1 (host1) failed: OSError: no file descriptors"
    assert other.until("verdict") == JobVerdict(lost=reason).write()
    assert link.verdict([]) == JobVerdict(lost=reason)
    link.close()
    other.channel.close()


def test_a_connection_that_comes_back_is_told_everything_again(opened: list[Hub]) -> None:
    hub, guests = meet(opened, 2)
    guests[1].channel.close()
    again = Guest(hub, 1, 2)
    again.until("agreed")
    for guest in (guests[0], again):
        guest.channel.close()


def test_what_is_no_message_ends_that_connection_alone(opened: list[Hub]) -> None:
    hub, guests = meet(opened, 2)
    ours, theirs = socket.socketpair()
    hub.take(theirs)
    ours.sendall(b"\x80\x04nonsense\n")
    assert ours.recv(1) == b""
    ours.close()
    guests[0].channel.send("beat")
    assert guests[0].next() == [("beat", "")]
    for guest in guests:
        guest.channel.close()


def test_a_line_without_an_end_is_not_kept() -> None:
    ours, theirs = socket.socketpair()
    channel = JsonChannel(theirs)

    def pour() -> None:
        while True:
            ours.sendall(b"x" * 50_000)
            channel.receive()

    with ours, pytest.raises(Closed):
        pour()
    channel.close()


def test_messages_arrive_whole_however_they_were_cut() -> None:
    ours, theirs = socket.socketpair()
    channel = JsonChannel(theirs)
    channel.send("long", "x" * 3_000_000)
    assert channel.waiting
    other, found = JsonChannel(ours), b""
    ours.setblocking(False)
    while not found.endswith(b"\n"):
        channel.flush()
        if select.select([ours], [], [], 0)[0]:
            found += ours.recv(1 << 20)
    assert len(found) == len('["long", ""]\n') + 3_000_000
    channel.close()
    with pytest.raises(Closed):
        other.receive()
    other.close()


def test_only_who_knows_the_token_stays() -> None:
    hub = Hub(Meeting(2, PATIENT), "here", PATIENT)
    store = Store("127.0.0.1", 0, "the-token")
    try:
        store.stand_by(hub)
        with socket.create_connection(("127.0.0.1", store.port), 100) as stranger:
            stranger.sendall(b"JOIN /guess/ HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
            with stranger.makefile("rb") as answer:
                assert answer.read().startswith(b"HTTP/1.1 403")
        assert hub.messages == 0
    finally:
        store.close()
        hub.close()


def test_hosts_are_compared_as_they_come() -> None:
    meeting = Meeting(3, 60.0)
    assert meeting.join(node(0, 3).write()) is not None
    other = replace(node(1, 3), versions={"dream": "2", "Python": "3.12"})
    assert meeting.join(other.write()) is None
    assert "Python 3.11 on node 0 (host0); Python 3.12 on node 1 (host1)" in meeting.refusal


def test_a_package_that_a_host_lacks_is_not_compared() -> None:
    meeting = Meeting(2, 60.0)
    meeting.join(replace(node(0, 2), versions={"torch": "2.13.0"}).write())
    meeting.join(replace(node(1, 2), versions={"tensorflow": "2.21.0"}).write())
    assert meeting.complete


def test_who_leaves_before_all_have_come_may_come_again_otherwise() -> None:
    meeting = Meeting(2, 60.0)
    meeting.join(node(1, 2).write())
    meeting.leave(1)
    again = replace(node(1, 2), launcher="another", name="other")
    assert meeting.join(again.write()) == again
    assert meeting.missing == "0"


def test_what_another_version_says_is_refused_with_the_remedy() -> None:
    meeting = Meeting(2, 60.0)
    assert meeting.join({"number": 1}) is None
    assert "Install the same version of dream" in meeting.refusal


def test_a_refused_token_is_told_at_once() -> None:
    def connect() -> socket.socket:
        raise ConfigurationError("The rendezvous refused the token.")

    link = HostLink(node(1, 2), connect, "here", lambda: None)
    with pytest.raises(ConfigurationError, match="refused the token"):
        link.agree()
    link.close()
