"""Two hosts made of network namespaces: what goes between them is counted by their interfaces."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ranks_job import DREAM, QUIET

SCRIPT = Path(__file__).with_name("two_hosts.py")
ELEMENTS, CALLS = 1_000_000, 5
HEADERS = 1.1
"""Ethernet's, IP's and TCP's own bytes, acknowledgements included, beside a payload's."""


@dataclass(frozen=True)
class Host:
    namespace: str
    interface: str
    address: str


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[list[Host]]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    name = secrets.token_hex(3)
    hosts = [Host(f"dream-{name}-{i}", f"dr{name}{i}", f"10.77.31.{i + 1}") for i in range(2)]
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
        _ip("link", "add", hosts[0].interface, "type", "veth", "peer", "name", hosts[1].interface)
        for host in hosts:
            _ip("link", "set", host.interface, "netns", host.namespace)
            inside = ("-n", host.namespace)
            _ip(*inside, "addr", "add", f"{host.address}/24", "dev", host.interface)
            _ip(*inside, "link", "set", host.interface, "up")
            _ip(*inside, "link", "set", "lo", "up")
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.namespace], check=False, timeout=100)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=100)
    if done.returncode:
        pytest.skip(f"network namespaces cannot be made here: {done.stderr.strip()}")


def run(hosts: list[Host], reduction: str) -> tuple[str, list[float]]:
    """The wire's name, and the bytes that each host sent for one all_reduce."""
    environ = os.environ | QUIET | {"DREAM_TOKEN": secrets.token_hex(16)}
    jobs = [
        subprocess.Popen(
            [
                "ip", "netns", "exec", host.namespace, str(DREAM), "run", "-n", "2",
                "--nnodes", "2", "--node-rank", str(index), "--master-addr", hosts[0].address,
                str(SCRIPT), reduction, str(ELEMENTS), str(CALLS), host.interface,
            ],
            env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for index, host in enumerate(hosts)
    ]  # fmt: skip
    try:
        said = [job.communicate(timeout=500)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.communicate()
    assert [job.returncode for job in jobs] == [0, 0], "\n".join(said)
    line = next(line for line in said[0].splitlines() if '"told"' in line)
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
