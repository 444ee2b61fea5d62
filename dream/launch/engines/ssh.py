"""`dream run --hosts a:4,b:4`: one `dream run` on each host, started over ssh.

What a host is to run goes over the channel that ssh opens, with the token; the command line that
others can see is the same for every job. The hosts' own launchers do the rest: they meet, watch,
name who failed and end together.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from queue import SimpleQueue
from typing import final

from dream._errors import ConfigurationError
from dream.cluster import settings
from dream.cluster.ports import is_loopback, local_address
from dream.launch.engines.engine import LaunchEngine, carried, program
from dream.launch.engines.request import Host, Request, interpreter
from dream.launch.engines.ssh_hosts import Hosts, Remote
from dream.launch.guard import heard

_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=5",
            "-o", "ServerAliveCountMax=3")  # fmt: skip


@final
class Ssh(LaunchEngine):
    def written(self, request: Request) -> str:
        hosts = _several(request)
        first = _first_address(request)
        return "\n".join(
            f"{shlex.join(_way(request, host))}"
            f"   # dream {shlex.join(_command(request, node, first))}"
            for node, host in enumerate(hosts)
        )

    def start(self, request: Request) -> int:
        hosts = _several(request)
        first = _first_address(request)
        environ = carried() | {settings.TOKEN: os.environ.get(settings.TOKEN) or _token()}
        events: SimpleQueue[int] = SimpleQueue()

        def begin(node: int) -> Remote:
            shows = node == 0 or request.given.all_output
            remote = Remote(hosts[node], _way(request, hosts[node]), shows=shows)
            remote.ask(_command(request, node, first), environ)
            return remote

        with heard(events.put):
            started = Hosts(begin, len(hosts), request.given.max_restarts)
            try:
                return started.until_the_end(events)
            finally:
                started.close()


def _several(request: Request) -> tuple[Host, ...]:
    if not request.hosts:
        raise ConfigurationError(
            "ssh needs to know the hosts. Received: --on ssh, no --hosts. Pass --hosts A:4,B:4, or "
            "a file."
        )
    return request.hosts


def _token() -> str:
    return os.urandom(16).hex()


def _first_address(request: Request) -> str:
    """Return where the other hosts reach the first: as told, else as ssh's own settings say that
    its name is to be read."""
    if request.given.master_addr:
        return str(request.given.master_addr)
    first = request.hosts[0]
    asked = subprocess.run(
        [*_ssh(request), "-G", "--", first.name],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    names = [line.split()[1] for line in asked.stdout.splitlines() if line.startswith("hostname ")]
    address = names[0] if names else first.address
    if len(request.hosts) > 1 and is_loopback(address):
        raise ConfigurationError(
            f"The other hosts must be able to reach the first host. Received: {address} as the "
            "first of --hosts. Use the name under which they know it, or pass --master-addr."
        )
    return address


def _ssh(request: Request) -> list[str]:
    ssh = program("ssh", "Install OpenSSH's client.")
    return [ssh, *_OPTIONS, *request.given.engine_option]


def _way(request: Request, host: Host) -> list[str]:
    """Return what starts Python on a host: on this one itself no ssh."""
    here = [interpreter(), "-m", "dream.launch.engines.remote"]
    if is_loopback(host.address) or local_address(host.address) is not None:
        return here
    return [*_ssh(request), "--", host.name, f"exec {shlex.join(here)}"]


def _command(request: Request, node: int, first: str) -> list[str]:
    hosts = len(request.hosts)
    place = ["--nnodes", str(hosts), "--node-rank", str(node), "--master-addr", first]
    return request.command(*(place if hosts > 1 else ()))
