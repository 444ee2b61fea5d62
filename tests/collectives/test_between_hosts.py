"""Two hosts made of network namespaces: what goes between them is counted by their interfaces."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import netns
import pytest
from netns import DREAM, Host, Started
from ranks_job import QUIET

SCRIPT = Path(__file__).with_name("two_hosts.py")
ELEMENTS, CALLS = 1_000_000, 5
HEADERS = 1.1
"""Ethernet's, IP's and TCP's own bytes, acknowledgements included, beside a payload's."""


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[list[Host]]:
    with netns.hosts(2) as made:
        yield made


def run(hosts: list[Host], reduction: str) -> tuple[str, list[float]]:
    """The wire's name, and the bytes that each host sent for one all_reduce."""
    environ = QUIET | {"DREAM_TOKEN": secrets.token_hex(16)}
    with Started() as started:
        for index, host in enumerate(hosts):
            started.on(
                host, *DREAM, "run", "-n", "2", "--nnodes", "2", "--node-rank", str(index),
                "--master-addr", hosts[0].address, str(SCRIPT), reduction, str(ELEMENTS),
                str(CALLS), host.interface, env=environ,
            )  # fmt: skip
        said = netns.ends(started.processes, time.monotonic(), 500.0)
    assert [one.code for one in said] == [0, 0], said
    line = next(line for line in said[0].out.splitlines() if '"told"' in line)
    found = json.loads(line[line.index("{") :])
    assert all(right for right, _ in found["told"]), found
    return found["name"], [found["told"][rank][1] for rank in (0, 2)]


@pytest.mark.slow
def test_bytes_between_hosts_are_the_formulas(two_hosts: list[Host]) -> None:
    """N bytes, H hosts: 2N(H-1)/H by leaders; a flat ring of P ranks crosses with 2N(P-1)/P."""
    size = 4 * ELEMENTS
    name, by_leaders = run(two_hosts, "hierarchical")
    assert name == "hierarchical"
    _, flat = run(two_hosts, "gloo")
    for sent in by_leaders:
        assert size <= sent <= size * HEADERS, (sent, size)
    for sent in flat:
        assert sent >= 1.5 * size, (sent, size)
