"""Hosts made of network namespaces, on one switch: to be killed, cut off and named otherwise."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

import pytest

DREAM = (sys.executable, "-m", "dream")
# A fork server would start ranks on this machine, and not on that host.
_BECOME = 'export DREAM_FORK_SERVER=; hostname "$0"; '
_BECOME += '[ -z "$HOSTS_FILE" ] || mount --bind "$HOSTS_FILE" /etc/hosts; exec "$@"'


@dataclass(frozen=True)
class Host:
    """name: as the host calls itself; address: where others reach it."""

    namespace: str
    name: str
    interface: str
    port: str
    switch: str
    address: str

    def command(self, *command: str) -> list[str]:
        """What runs on this host. The process keeps its number throughout."""
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts",
                "sh", "-c", _BECOME, self.name, *command]  # fmt: skip

    def cable(self, state: str) -> None:
        """Pull it out of the switch ("down"), or put it back ("up")."""
        ip("-n", self.switch, "link", "set", self.port, state)

    def link(self, state: str) -> None:
        """The host's own interface "down", so that it has no route, or "up" again."""
        ip("-n", self.namespace, "link", "set", self.interface, state)

    def pids(self) -> list[int]:
        """Every process on this host."""
        return [int(pid) for pid in ip("netns", "pids", self.namespace).split()]

    def kill(self) -> None:
        """Everything on this host at once."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@final
class Started:
    """Processes that end, and whose pipes are closed, with the block."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def here(self, *command: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """On this machine itself."""
        process = subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def on(
        self, host: Host, *command: str, env: Mapping[str, str] | None = None,
        hosts_file: Path | None = None,
    ) -> subprocess.Popen[str]:  # fmt: skip
        """hosts_file: what the host finds at /etc/hosts."""
        files = {"HOSTS_FILE": str(hosts_file or "")}
        return self.here(*host.command(*command), env={**(env or {}), **files})


@contextmanager
def hosts(count: int, *, ipv6: bool = False) -> Iterator[list[Host]]:
    """Hosts that reach one another and nothing else; skips the test where none can be made.
    ipv6: they have that alone, for themselves too."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("network namespaces need root and the programs ip and unshare")
    mark = secrets.token_hex(3)
    switch = f"dream-{mark}-s"
    net = "fd00:" if ipv6 else f"10.{76 + secrets.randbelow(100)}.{secrets.randbelow(250)}."
    made = [
        Host(
            f"dream-{mark}-{i}",
            f"host{i}",
            f"dr{mark}{i}",
            f"dp{mark}{i}",
            switch,
            f"{net}:{i + 1}" if ipv6 else f"{net}{i + 1}",
        )
        for i in range(count)
    ]
    try:
        _make(switch, made)
        yield made
    finally:
        for host in made:
            if Path("/run/netns", host.namespace).exists():
                host.kill()
        for namespace in (*(host.namespace for host in made), switch):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True,
                           timeout=100)  # fmt: skip


def _make(switch: str, made: Sequence[Host]) -> None:
    try:
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        for host in made:
            ip("netns", "add", host.namespace)
            ip("link", "add", host.interface, "type", "veth", "peer", "name", host.port)
            ip("link", "set", host.interface, "netns", host.namespace)
            ip("link", "set", host.port, "netns", switch)
            ip("-n", switch, "link", "set", host.port, "master", "br0", "up")
            inside = ("-n", host.namespace)
            ipv6 = ":" in host.address
            size = ["64", "nodad"] if ipv6 else ["24"]  # nodad: an address that is there at once
            ip(*inside, "addr", "add", f"{host.address}/{size[0]}", *size[1:], "dev",
               host.interface)  # fmt: skip
            ip(*inside, "link", "set", host.interface, "up")
            ip(*inside, "link", "set", "lo", "up")
            if ipv6:
                ip(*inside, "addr", "del", "127.0.0.1/8", "dev", "lo")
    except RuntimeError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=100)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Said:
    """How a launcher ended. seconds: after `since`."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def message(self) -> str:
        """What the launcher itself says last."""
        return self.err[self.err.rindex("dream run:") :] if "dream run:" in self.err else self.err


def ends(
    launchers: Sequence[subprocess.Popen[str]], since: float, seconds: float = 120.0
) -> list[Said]:
    """How each of them ended, within a time."""
    took: dict[int, float] = {}
    while len(took) < len(launchers) and time.monotonic() - since < seconds:
        for launcher in launchers:
            if launcher.pid not in took and launcher.poll() is not None:
                took[launcher.pid] = time.monotonic() - since
        time.sleep(0.02)
    left = [str(launcher.args) for launcher in launchers if launcher.pid not in took]
    assert not left, f"still there after {seconds:.0f} s: {left}"
    return [
        Said(launcher.returncode, *launcher.communicate(timeout=60), took[launcher.pid])
        for launcher in launchers
    ]
