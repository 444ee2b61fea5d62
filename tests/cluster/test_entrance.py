"""Strangers at the doors: they cost little, do not stay, and keep nobody out."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from dream import ConfigurationError
from dream._topology import Endpoint
from dream.cluster import Rendezvous, entrance
from dream.cluster.entrance import MOST_STRANGERS, expect, greet, new_word
from dream.cluster.store import LARGEST_VALUE, Store

TOKEN = "a-token-of-the-job"
CLAIM = f"PUT /another-token/a/b HTTP/1.1\r\nContent-Length: {LARGEST_VALUE}\r\n\r\n".encode()


class Serving:
    """A store in a process of its own, whose cost can be asked for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port = int(self._line())

    def cost(self) -> tuple[int, int, int]:
        """Threads, open files, and the most memory so far in MB."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        threads, files, memory = map(int, self._line().split())
        return threads, files, memory

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@pytest.fixture
def serving() -> Iterator[Serving]:
    script = Path(__file__).with_name("strangers.py")
    with subprocess.Popen(
        [sys.executable, str(script), TOKEN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Serving(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(100)


@pytest.fixture
def store() -> Iterator[Store]:
    served = Store("127.0.0.1", 0, TOKEN)
    yield served
    served.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 100)


def ended(connection: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    said = b""
    with suppress(ConnectionError):
        while more := connection.recv(1 << 16):
            said += more
    return said


def test_strangers_cost_little_and_keep_nobody_out(serving: Serving) -> None:
    """200 that say half a request, and 60 that announce 16 MB each and send what is taken."""
    client = Rendezvous(Endpoint("127.0.0.1", serving.port), TOKEN)

    def announce() -> None:
        with connect(serving.port) as stranger, suppress(ConnectionError, TimeoutError):
            stranger.sendall(CLAIM)
            stranger.sendall(bytes(LARGEST_VALUE))

    with ExitStack() as held, ThreadPoolExecutor(60) as pool:
        for number in range(200):
            half = held.enter_context(connect(serving.port))
            with suppress(ConnectionError):
                half.sendall(b"PUT /" + TOKEN[: number % 9].encode())
        announced = [pool.submit(announce) for _ in range(60)]
        for number in range(20):
            client.put(f"a/{number}", bytes(1000))
            assert client.find(f"a/{number}") == bytes(1000)
        for each in announced:
            each.result(timeout=200)
        threads, files, memory = serving.cost()
    assert threads <= 3
    assert files <= MOST_STRANGERS + 20
    assert memory < 100


def test_a_wrong_token_closes_before_the_body_is_sent(store: Store) -> None:
    with connect(store.port) as stranger:
        stranger.sendall(CLAIM)
        assert ended(stranger).startswith(b"HTTP/1.1 403")
    with connect(store.port) as stranger:
        stranger.sendall(b"GET /another/a/b HTTP/1.1\r\n")  # and no end of the head
        assert ended(stranger).startswith(b"HTTP/1.1 403")
    assert store.values == {}


@pytest.mark.parametrize(
    "said",
    [
        b"GET " + b"x" * (1 << 15),
        f"GET /{TOKEN}/a HTTP/1.1\r\n".encode() + b"a: b\r\n" * 4000,
        f"PUT /{TOKEN}/a/b HTTP/1.1\r\nContent-Length: {LARGEST_VALUE + 1}\r\n\r\n".encode(),
        f"PUT /{TOKEN}/a/b HTTP/1.1\r\nContent-Length: -1\r\n\r\n".encode(),
        f"PUT /{TOKEN}/a/b HTTP/1.1\r\nContent-Length: {'0' * 5000}\r\n\r\n".encode(),
        b"\x80\x04\x95a-pickle\n",
        bytes(1 << 15),
    ],
)
def test_lies_about_lengths_close_the_connection(store: Store, said: bytes) -> None:
    with connect(store.port) as stranger:
        with suppress(ConnectionError):
            stranger.sendall(said)
        assert ended(stranger) == b""
    client = Rendezvous(Endpoint("127.0.0.1", store.port), TOKEN)
    client.put("a/b", b"still there")
    assert store.values == {"a/b": b"still there"}


def test_a_request_byte_by_byte_is_heard_until_its_time_is_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is the whole request's, however often a byte comes."""
    request = f"GET /{TOKEN}/a/b HTTP/1.1\r\n\r\n".encode()
    store.values["a/b"] = b"here"
    with connect(store.port) as slow:
        for byte in request:
            slow.sendall(bytes([byte]))
        assert ended(slow).endswith(b"here")
    monkeypatch.setattr(entrance, "STRANGER_SECONDS", 0.5)
    with connect(store.port) as slow, suppress(ConnectionError):
        limit = time.monotonic() + 100
        while time.monotonic() < limit:
            slow.sendall(b"x")
            time.sleep(0.05)
        raise AssertionError("it is still heard")


def test_values_as_large_as_may_be_go_both_ways(store: Store) -> None:
    client = Rendezvous(Endpoint("127.0.0.1", store.port), TOKEN)
    value = bytes(range(256)) * (LARGEST_VALUE // 256)
    client.put("a/b", value)
    assert client.find("a/b") == value


def test_many_ranks_at_one_time(store: Store) -> None:
    client = Rendezvous(Endpoint("127.0.0.1", store.port), TOKEN)
    before = threading.active_count()

    def call(number: int) -> bool:
        client.put(f"a/{number}", b"%d" % number)
        return client.find(f"a/{number}") == b"%d" % number

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(call, range(400), timeout=200))
    assert threading.active_count() == before


def test_a_closed_store_lets_go_of_its_port(store: Store) -> None:
    waiting = connect(store.port)
    store.close()
    assert ended(waiting) == b""
    waiting.close()
    again = Store("127.0.0.1", store.port, TOKEN)
    again.close()


class Hall:
    """Behind a door: who came, and what for."""

    def __init__(self) -> None:
        self.word = new_word()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self.came: list[tuple[int, str, socket.socket]] = []
        self.somebody = threading.Semaphore(0)
        self._entrance = expect(listener, self.word, self._welcome, "hall")

    def _welcome(self, rank: int, purpose: str, connection: socket.socket) -> None:
        self.came.append((rank, purpose, connection))
        self.somebody.release()

    def close(self) -> None:
        self._entrance.close()
        for _, _, connection in self.came:
            connection.close()


@pytest.fixture
def hall() -> Iterator[Hall]:
    opened = Hall()
    yield opened
    opened.close()


def test_who_knows_the_word_is_handed_over_with_all_that_follows(hall: Hall) -> None:
    with connect(hall.port) as friend:
        greet(friend, hall.word, 3, "späße")
        friend.sendall(b"and more")
        assert hall.somebody.acquire(timeout=100)
        ((rank, purpose, connection),) = hall.came
        assert (rank, purpose) == (3, "späße")
        assert connection.recv(8, socket.MSG_WAITALL) == b"and more"
        assert connection.gettimeout() is None


def test_who_does_not_is_closed_at_once(hall: Hall) -> None:
    with connect(hall.port) as stranger:
        greet(stranger, "0" * 32, 3, "work")
        assert ended(stranger) == b""
    with connect(hall.port) as stranger:
        greet(stranger, hall.word, 3, "x" * 2000)  # a longer purpose than there is
        assert ended(stranger) == b""
    assert not hall.came


def test_a_crowd_at_the_door_keeps_nobody_out(hall: Hall) -> None:
    threads = threading.active_count()
    with ExitStack() as held:
        crowd = [held.enter_context(connect(hall.port)) for _ in range(200)]
        for stranger in crowd:
            with suppress(ConnectionError):
                stranger.sendall(hall.word[:20].encode())
        friend = held.enter_context(connect(hall.port))
        greet(friend, hall.word, 0, "work")
        assert hall.somebody.acquire(timeout=100)
        assert ended(crowd[0]) == b""  # the first that came made room
        assert threading.active_count() == threads


def test_who_only_holds_the_port_learns_nothing_and_is_found_out() -> None:
    """What a rank says to a stranger does not let the stranger in, and his answers do not count."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        port = impostor.getsockname()[1]

        def lie() -> None:
            connection, _ = impostor.accept()
            with connection:
                heard.append(connection.recv(1 << 16))
                connection.sendall(b"HTTP/1.1 200 OK\r\nDream-Proof: abc\r\n\r\nevil")

        lying = threading.Thread(target=lie, daemon=True)
        lying.start()
        with pytest.raises(ConfigurationError, match="not this job's rendezvous"):
            Rendezvous(Endpoint("127.0.0.1", port), TOKEN).find("a/b")
        lying.join(100)
    (said,) = heard
    assert TOKEN.encode() not in said
    store = Store("127.0.0.1", 0, TOKEN)
    for other in (said.replace(b"a/b", b"a/c"), said.replace(b"GET", b"DELETE")):
        with connect(store.port) as stranger:
            stranger.sendall(other)
            assert ended(stranger).startswith(b"HTTP/1.1 403")
    store.close()
