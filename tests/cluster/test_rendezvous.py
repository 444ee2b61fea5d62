"""The store and its clients, over real sockets."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest

from dream import ConfigurationError, WorkerFailed
from dream._topology import Cluster, Endpoint
from dream.cluster import (
    Rendezvous,
    exchange_endpoints,
    found,
    horovod_environment,
    meet,
    reserve,
)
from dream.cluster.ports import LOOPBACK_INTERFACE, _address, interface_toward
from dream.cluster.rendezvous import Missing, rendezvous, serve
from dream.cluster.store import Store

TOKEN = "a-token"


@pytest.fixture
def store() -> Iterator[Store]:
    served = serve(Endpoint("127.0.0.1", 0), TOKEN, "another")
    yield served
    served.close()


@pytest.fixture
def client(store: Store) -> Rendezvous:
    return Rendezvous(Endpoint("127.0.0.1", store.port), TOKEN)


def ask(port: int, request: str) -> bytes:
    """One raw request, as a client that is not ours would send it."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(request.encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answer:
            return answer.read()


def test_put_find_delete(client: Rendezvous) -> None:
    assert client.find("a/b") is None
    client.put("a/b", b"\x00\r\n\r\nvalue")
    assert client.find("a/b") == b"\x00\r\n\r\nvalue"
    client.delete("a/b")
    assert client.find("a/b") is None


def test_an_empty_value_is_a_value(client: Rendezvous) -> None:
    client.put("a/b", b"")
    assert client.get("a/b", timeout=100) == b""


def test_get_waits(client: Rendezvous) -> None:
    threading.Timer(0.2, client.put, ("a/b", b"late")).start()
    assert client.get("a/b", timeout=100) == b"late"


def test_what_never_comes_is_named(client: Rendezvous) -> None:
    client.put("a/1", b"")
    with pytest.raises(Missing, match="a/0, a/2"):
        client.gather(["a/0", "a/1", "a/2"], timeout=0.1)


def test_the_token_is_asked_for(store: Store) -> None:
    stranger = Rendezvous(Endpoint("127.0.0.1", store.port), "another-token")
    with pytest.raises(ConfigurationError, match="DREAM_TOKEN"):
        stranger.put("a/b", b"mine")
    assert store.values == {}


def test_the_requests_that_horovods_core_sends(store: Store, client: Rendezvous) -> None:
    path = f"/{TOKEN}:{store.port}/global/0"
    put = f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n\r\nhere"
    assert ask(store.port, put).startswith(b"HTTP/1.1 200")
    assert client.find("global/0") == b"here"
    get = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
    assert ask(store.port, get).endswith(b"\r\n\r\nhere")
    assert ask(store.port, get.replace("GET", "DELETE")).startswith(b"HTTP/1.1 200")
    assert ask(store.port, get).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize(
    "request_",
    ["", "nonsense\r\n\r\n", "PUT /a-token/a/b HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n"],
)
def test_nonsense_does_no_harm(store: Store, client: Rendezvous, request_: str) -> None:
    assert ask(store.port, request_) == b""
    client.put("a/b", b"still there")
    assert client.find("a/b") == b"still there"


def test_a_busy_address_is_named_with_the_remedy(store: Store) -> None:
    with pytest.raises(ConfigurationError, match=rf"busy.*127.0.0.1:{store.port}.*Set another"):
        serve(Endpoint("127.0.0.1", store.port), TOKEN, "another")


def test_a_reserved_port_is_free_for_its_owner_alone() -> None:
    port = reserve()
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", port.port))
    with socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        owner.bind(("127.0.0.1", port.port))
        owner.listen()
    port.close()


def ranks(world_size: int) -> list[Cluster]:
    """Places as under torchrun: rank 0 serves."""
    first = reserve()
    store = Endpoint("127.0.0.1", first.port)
    first.close()
    alone = Cluster(
        source="a test",
        world_size=world_size,
        local_world_size=world_size,
        master=Endpoint("127.0.0.1", 1),
        rendezvous=store,
        token=TOKEN,
        serves_rendezvous=True,
    )
    return [
        replace(alone, rank=rank, local_rank=rank, serves_rendezvous=rank == 0)
        for rank in range(world_size)
    ]


def together(function: Callable[[Cluster], object], places: list[Cluster]) -> list[object]:
    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(function, places, timeout=200))


def test_ranks_exchange_their_endpoints() -> None:
    told = together(exchange_endpoints, ranks(3))
    assert told[0] == told[1] == told[2]
    assert len(set(told[0])) == 3  # type: ignore[call-overload]


def test_the_launchers_endpoints_are_taken() -> None:
    workers = (Endpoint("a", 1), Endpoint("b", 1))
    assert exchange_endpoints(Cluster(world_size=2, workers=workers)) == workers
    assert exchange_endpoints(Cluster()) == ()


def test_absent_ranks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come begin to wait once both have said so."""
    monkeypatch.setenv("DREAM_STARTUP_SECONDS", "1")
    module = sys.modules[meet.__module__]
    places, both, put = ranks(4), Barrier(2), module._put

    def put_both(*given: Any) -> None:
        put(*given)
        both.wait(100)

    monkeypatch.setattr(module, "_put", put_both)
    rendezvous(places[0])

    def come(place: Cluster) -> str:
        with pytest.raises(WorkerFailed) as error:
            meet(place, "start")
        return str(error.value)

    for message in together(come, [places[0], places[2]]):
        assert "did not check in within 1 s: ranks 1, 3" in str(message)


def test_an_absent_store_is_rank_0s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAM_STARTUP_SECONDS", "0.2")
    with pytest.raises(WorkerFailed, match="Rank 0 did not check in"):
        meet(ranks(2)[1], "start")


def test_a_startup_time_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAM_STARTUP_SECONDS", "soon")
    with pytest.raises(ConfigurationError, match=r"DREAM_STARTUP_SECONDS.*'soon'"):
        meet(ranks(2)[1], "start")


def test_a_store_that_does_not_answer_now_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever serves it may be stopped for a while: who only looks is not to fail of it."""

    def silent(self: Rendezvous, key: str) -> bytes:
        del self, key
        raise TimeoutError("timed out")

    monkeypatch.setattr(Rendezvous, "find", silent)
    assert found(ranks(2)[1], "scope/name") is None


def test_horovods_environment() -> None:
    place = ranks(2)[1]
    environ = horovod_environment(place)
    assert place.rendezvous is not None
    assert environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == f"{place.rendezvous}/{TOKEN}"
    assert environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] == str(place.rendezvous.port)
    assert (environ["HOROVOD_RANK"], environ["HOROVOD_SIZE"]) == ("1", "2")
    assert (environ["HOROVOD_CROSS_RANK"], environ["HOROVOD_CROSS_SIZE"]) == ("0", "1")
    assert horovod_environment(Cluster()) == {}


def test_the_interface_of_loopback() -> None:
    assert interface_toward("127.0.0.1") == interface_toward("localhost") == LOOPBACK_INTERFACE
    assert _address(LOOPBACK_INTERFACE) == "127.0.0.1"
