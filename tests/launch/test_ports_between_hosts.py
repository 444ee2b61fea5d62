"""What hosts of network namespaces reach of one another's jobs."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import netns
import pytest
from listening import DREAM, MINUTES, TENSORFLOW, TORCH, named, running, seen
from netns import Host
from open_ports import Listener

LOW, HIGH, STORE = 43000, 43099, 29500
KNOCK = """
import json, socket, sys
open_ports = []
for port in json.loads(sys.argv[2]):
    try: socket.create_connection((sys.argv[1], port), 60).close()
    except OSError: continue
    open_ports.append(port)
print(json.dumps(open_ports))
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with netns.hosts(2) as made:
        yield made


def reached(by: Host, host: Host, ports: Iterable[int]) -> list[int]:
    """Those of a host's ports that another one reaches."""
    asked = [sys.executable, "-c", KNOCK, host.address, json.dumps(sorted(ports))]
    done = subprocess.run(
        by.command(*asked), capture_output=True, text=True, timeout=MINUTES, check=True
    )
    found: list[int] = json.loads(done.stdout)
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", [TORCH, TENSORFLOW, ("tensorflow", "sharded")], ids=named)
def test_a_neighbour_reaches_nothing_of_a_job_on_one_host(
    words: tuple[str, ...], hosts: list[Host], tmp_path: Path
) -> None:
    with running([hosts[0].command(*DREAM, "2")], tmp_path / "job", words) as jobs:
        ports = {one.port for one in seen(jobs)}
        assert ports
        assert reached(hosts[1], hosts[0], ports) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        TORCH,
        *(
            pytest.param(one, marks=pytest.mark.exhaustive)
            for one in [
                ("torch", "collectives", "hierarchical", "horovod"),
                TENSORFLOW,
                ("tensorflow", "collectives", "hierarchical", "horovod"),
                ("tensorflow", "sharded"),
            ]
        ),
    ],
    ids=named,
)
def test_between_hosts(words: tuple[str, ...], hosts: list[Host], tmp_path: Path) -> None:
    """Each listens at its own address, in the range, and says what is open without a token."""
    commands = [
        host.command(
            *DREAM, "1", "--nnodes", "2", "--node-rank", str(number),
            "--master-addr", hosts[0].address, "--port-range", f"{LOW}-{HIGH}",
        )
        for number, host in enumerate(hosts)
    ]  # fmt: skip
    environ = {"DREAM_TOKEN": secrets.token_hex(16)}
    with running(commands, tmp_path / "job", words, environ) as jobs:
        found = [seen([job]) for job in jobs]
    store = Listener(hosts[0].address, STORE)
    assert store in found[0]
    for host, listening in zip(hosts, found, strict=True):
        assert {one.plain_address for one in listening} == {host.address}
        assert [one for one in listening - {store} if not LOW <= one.port <= HIGH] == []
    said = (tmp_path / "job.said").read_text()
    for number, host in enumerate(hosts):
        where = f"dream run: node {number} listens at {host.address} on"
        assert where in said
    assert f"ports from {LOW}-{HIGH}" in said
    assert "without a token" in said
