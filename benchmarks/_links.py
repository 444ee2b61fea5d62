"""Hosts behind links that carry so much a second: network namespaces on a switch."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _measure import dream_command

LIMIT = 900.0
"""Seconds that a job may take."""


def from_hosts(hosts: int, megabits: int, script: str | Path, *words: str) -> Any:
    """What `script FILE words... INTERFACE` writes to FILE as JSON, run on hosts with a rank of one
    thread each."""
    with TemporaryDirectory() as folder, linked(hosts, megabits) as names, ExitStack() as started:
        out = Path(folder, "figures")
        environ = os.environ | {"OMP_NUM_THREADS": "1", "DREAM_TOKEN": secrets.token_hex(8)}
        launchers = [
            started.enter_context(
                subprocess.Popen(
                    ["ip", "netns", "exec", host, dream_command(), "run", "-n", "1", "--nnodes",
                     str(hosts), "--node-rank", str(node), "--master-addr", address(0), str(script),
                     str(out), *words, link(node)],
                    env=environ,
                )
            )
            for node, host in enumerate(names)
        ]  # fmt: skip
        try:
            codes = [launcher.wait(LIMIT) for launcher in launchers]
        finally:
            for launcher in launchers:
                launcher.kill()
        if any(codes):
            raise SystemExit(f"{script} {words}: the hosts ended with {codes}")
        return json.loads(out.read_text())


def address(node: int) -> str:
    return f"10.213.7.{node + 1}"


def link(node: int) -> str:
    """The name of a host's own interface."""
    return f"slow{os.getpid() % 100_000}h{node}"


@contextmanager
def linked(hosts: int, megabits: int) -> Iterator[list[str]]:
    """Hosts, each of which may send so much, as long as the block lasts; needs root, `ip` and
    `tc`."""
    switch, *names = (f"dream-slow-{os.getpid()}-{name}" for name in ("switch", *range(hosts)))
    try:
        for name in (switch, *names):
            run("ip", "netns", "add", name)
        run("ip", "-n", switch, "link", "add", "switch0", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "switch0", "up")
        for node, name in enumerate(names):
            here, port, within = link(node), f"port{node}", ("ip", "-n", name)
            run("ip", "-n", switch, "link", "add", port, "type", "veth",
                "peer", "name", here, "netns", name)  # fmt: skip
            run("ip", "-n", switch, "link", "set", port, "master", "switch0", "up")
            run(*within, "addr", "add", f"{address(node)}/24", "dev", here)
            run(*within, "link", "set", here, "up")
            run(*within, "link", "set", "lo", "up")
            run("tc", "-n", name, "qdisc", "add", "dev", here, "root", "tbf",
                "rate", f"{megabits}mbit", "burst", "256kb", "latency", "200ms")  # fmt: skip
        yield names
    finally:
        for name in (switch, *names):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def run(*command: str) -> None:
    subprocess.run(command, check=True)
