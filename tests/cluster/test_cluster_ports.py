"""Ports from a range, and listeners at one address."""

from __future__ import annotations

import socket

import pytest

from dream._errors import ConfigurationError
from dream._topology import Cluster, Endpoint
from dream.cluster import PortRange, detect, local_address, port_range, reserve
from dream.cluster.launchers import inward
from dream.cluster.ports import listener, listener_at


@pytest.mark.parametrize(
    "text", ["", "-", "1", "5-", "-5", "9-8", "0-9", "1-65536", "a-b", "1-2-3"]
)
def test_what_is_no_range_is_named(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match="DREAM_PORT_RANGE is not a valid port range"
    ) as caught:
        PortRange.parse(text, "DREAM_PORT_RANGE")
    assert repr(text) in str(caught.value)


def test_a_range_from_the_environment() -> None:
    assert port_range({}) is port_range({"DREAM_PORT_RANGE": ""}) is None
    found = port_range({"DREAM_PORT_RANGE": "40000-40001"})
    assert found is not None
    assert (str(found), list(found.ports)) == ("40000-40001", [40000, 40001])


def test_a_range_is_used_up_port_by_port() -> None:
    """By ports that are reserved and by those that are listened on alike."""
    within = three_free()
    ports = [reserve(within), listener("127.0.0.1", within), reserve(within)]
    try:
        first, second, third = ports
        assert isinstance(second, socket.socket)
        assert {first.port, second.getsockname()[1], third.port} == set(within.ports)  # type: ignore[union-attr]
        for asked in (lambda: reserve(within), lambda: listener("127.0.0.1", within)):
            with pytest.raises(ConfigurationError, match=f"No port is free.*{within}"):
                asked()
    finally:
        for port in ports:
            port.close()


def three_free() -> PortRange:
    for low in range(20000, 30000, 3):
        held = []
        try:
            for port in range(low, low + 3):
                held.append(socket.socket(socket.AF_INET6))
                held[-1].bind(("::", port))
            return PortRange(low, low + 2)
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
    raise AssertionError("no three free ports")


def test_a_listener_on_a_reserved_port_at_one_address() -> None:
    port = reserve()
    try:
        with listener_at("127.0.0.1", port.port) as found:
            assert found.getsockname() == ("127.0.0.1", port.port)
    finally:
        port.close()


def test_an_address_is_local_or_not() -> None:
    assert local_address("localhost") in ("127.0.0.1", "::1")
    assert local_address("127.0.0.1") == "127.0.0.1"
    assert local_address("192.0.2.1") is None  # kept for documentation: nobody's
    assert local_address("no-such-name.invalid") is None


def test_on_one_host_everything_is_reached_on_loopback() -> None:
    """Whatever name the launcher has for the host."""
    names = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
             "MASTER_ADDR": "some.host", "MASTER_PORT": "4000"}  # fmt: skip
    found = detect({**names, "DREAM_TOKEN": "a-common-token"})
    assert found.master == Endpoint("127.0.0.1", 4000)
    assert found.rendezvous == Endpoint("127.0.0.1", 4001)


def test_several_hosts_keep_their_names() -> None:
    master = Endpoint("some.host", 4000)
    place = Cluster(world_size=2, hosts=("some.host", "another"), master=master)
    assert inward(place) is place
