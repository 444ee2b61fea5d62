"""How hosts meet: what each tells of itself, who has come, and why some cannot go together."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, final

from dream._errors import ConfigurationError
from dream._topology import Endpoint
from dream.cluster import settings, startup_seconds
from dream.cluster.ports import LOOPBACK, is_loopback
from dream.launch.job import Job

_COMPARED = {
    "dream": ("dream-systems",),
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "keras": ("keras",),
    "horovod": ("horovod",),
}
"""The packages that ranks of several hosts must have of one version, and who distributes them."""
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Node:
    """What a host's launcher tells the others.

    number: its --node-rank. launcher: drawn at its start, so that one that comes back is told
    from another that was given the same number. address: where the others reach it. ports:
    torch's store, should this be node 0; then a port for each rank. node_timeout: what it was
    given; the largest counts. max_restarts: it too. min_nodes: the fewest hosts that will do; 0
    where all are needed.
    """

    number: int
    nnodes: int
    n: int
    name: str
    launcher: str
    ports: tuple[int, ...]
    versions: dict[str, str]
    node_timeout: float
    address: str = ""
    max_restarts: int = 0
    min_nodes: int = 0

    @property
    def hosts_change(self) -> bool:
        """Whether the job goes on with fewer hosts, and takes in those that come."""
        return 0 < self.min_nodes < self.nnodes

    @property
    def master(self) -> Endpoint:
        return Endpoint(self.address, self.ports[0])

    @property
    def workers(self) -> tuple[Endpoint, ...]:
        return tuple(Endpoint(self.address, port) for port in self.ports[1:])

    def __str__(self) -> str:
        return f"node {self.number} ({self.name})"

    @classmethod
    def read(cls, content: Any) -> Node:
        """KeyError, TypeError or ValueError where another version of dream wrote it otherwise."""
        return cls(**{**content, "ports": tuple(map(int, content["ports"]))})

    def write(self) -> dict[str, Any]:
        return asdict(self)


def own_node(job: Job, ports: Sequence[int]) -> Node:
    return Node(
        number=job.node_rank,
        nnodes=job.nnodes,
        n=job.n,
        name=socket.gethostname(),
        launcher=os.urandom(8).hex(),
        ports=tuple(ports),
        versions=versions(),
        node_timeout=job.node_timeout,
        max_restarts=job.max_restarts,
        min_nodes=job.min_nodes or 0,
    )


def versions() -> dict[str, str]:
    """Return those of Python and of packages that have to be alike; nothing is imported."""
    import platform
    from importlib import metadata

    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name, distributions in _COMPARED.items():
        for distribution in distributions:
            try:
                found[name] = metadata.version(distribution).partition("+")[0]
                break
            except metadata.PackageNotFoundError:
                continue
    return found


def disagreement(nodes: Iterable[Node]) -> str:
    """Say why these hosts cannot go together; empty where they can. A package that a host does not
    have is not compared: ranks there may need another."""
    known = sorted(nodes, key=lambda node: node.number)
    alike = "Give every host the same."
    found = (
        _differ(known, "--nnodes", _nnodes, alike),
        _twice(known),
        _differ(known, "-n", lambda node: str(node.n), alike),
        _differ(known, "--max-restarts", lambda node: str(node.max_restarts), alike),
        *(_versions_differ(known, name) for name in ("Python", *_COMPARED)),
    )
    return next(filter(None, found), "")


def _versions_differ(nodes: list[Node], name: str) -> str:
    having = [node for node in nodes if name in node.versions]
    remedy = "Install the same version on every host."
    return _differ(having, name, lambda node: node.versions[name], remedy)


def _nnodes(node: Node) -> str:
    return f"{node.min_nodes}:{node.nnodes}" if node.min_nodes else str(node.nnodes)


def _twice(nodes: list[Node]) -> str:
    for one, other in pairwise(nodes):
        if one.number == other.number:
            return (
                f"A node rank was given twice. Received: --node-rank {one.number} on hosts "
                f"{one.name} and {other.name}. Give every host its own."
            )
    return ""


def _differ(nodes: list[Node], what: str, of: Callable[[Node], str], remedy: str) -> str:
    having: dict[str, list[str]] = {}
    for node in nodes:
        having.setdefault(of(node), []).append(str(node))
    if len(having) < 2:
        return ""
    told = "; ".join(f"{what} {value} on {_some(names)}" for value, names in having.items())
    return f"The hosts of a job differ in {what}. Received: {told}. {remedy}"


def _some(names: list[str], shown: int = 4) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def numbers(nodes: Iterable[int], shown: int = 16) -> str:
    return _some([str(node) for node in sorted(nodes)], shown)


def absent(missing: str, nnodes: int, seconds: float, detail: str = "") -> str:
    """missing: the numbers of the hosts that did not come."""
    return (
        f"Of {nnodes} hosts, the launchers of these nodes did not come within {seconds:g} s: "
        f"{missing}. {detail}Start `dream run --node-rank` on each, or raise "
        f"{settings.STARTUP_SECONDS}."
    )


@final
class Meeting:
    """Waits for all hosts of a job, and numbers them.

    nnodes: as node 0 was given it. seconds: how long the others have to come. least: how many
    are enough, once nobody else has come for last_call seconds.
    """

    def __init__(self, nnodes: int, seconds: float, least: int = 0, last_call: float = 0.0) -> None:
        self.nnodes = nnodes
        self._least, self._last_call = least or nnodes, last_call
        self._came = time.monotonic()
        self._enough = False
        self.nodes: dict[int, Node] = {}
        self.refusal = ""
        """Why nobody can begin, for every host; empty while there is no reason."""

        self.late = False
        """Whether the refusal is that hosts did not come."""

        self._seconds = seconds
        self._strangers: list[str] = []

    @property
    def complete(self) -> bool:
        return not self.refusal and (self._enough or len(self.nodes) == self.nnodes)

    def look(self) -> None:
        """At the time: those who are there may be enough."""
        waited = time.monotonic() - self._came >= self._last_call
        self._enough = self._enough or (waited and self._least <= len(self.nodes))

    @property
    def missing(self) -> str:
        return numbers(set(range(self.nnodes)) - self.nodes.keys())

    def join(self, content: Any) -> Node | None:
        """Take the host that says this of itself; None where it cannot be taken: then either all
        have been refused, or it came too late. One that comes back is as it was."""
        try:
            node = Node.read(content)
        except (KeyError, TypeError, ValueError):
            self.refuse(
                "A host's launcher speaks another protocol than node 0's. Received: "
                f"{str(content)[:200]}. Install the same version of dream on every host."
            )
            return None
        before = self.nodes.get(node.number)
        if before is not None and before.launcher == node.launcher:
            return node
        if not self.complete:
            self.refuse(disagreement([*self.nodes.values(), node]))
        if self.refusal or self.complete:
            return None
        self.nodes[node.number] = node
        self._came = time.monotonic()
        return node

    def comes_again(self, content: Any) -> bool:
        """Whether this is a launcher of the job's next start, which this one is not over for."""
        known = {node.launcher for node in self.nodes.values()}
        restarts = any(node.max_restarts or node.hosts_change for node in self.nodes.values())
        return self.complete and restarts and content.get("launcher") not in known

    def newcomer(self, content: Any) -> tuple[Node | None, str]:
        """Return a host that the job may go on with besides those it has, and why it may not."""
        node = Node.read(content)
        if not node.hosts_change or node.number in self.nodes:
            return None, ""
        return node, disagreement([*self.nodes.values(), node])

    def leave(self, number: int) -> None:
        """Before all had come: it may be started again, in another way."""
        if not self.complete:
            self.nodes.pop(number, None)

    def stranger(self, address: str) -> bool:
        """One came from there without the token, which is no reason to end for the others.
        Whether it is the first time."""
        first = address not in self._strangers and len(self._strangers) < 8
        if first:
            self._strangers.append(address)
        return first

    def refuse(self, reason: str, *, late: bool = False) -> None:
        if reason and not self.refusal and not self.complete:
            self.refusal, self.late = reason, late

    def time_is_up(self, where: str) -> None:
        """where: what was waited at."""
        strangers = ", ".join(self._strangers)
        knocked = f"Without the token of node 0, one came from: {strangers}. " if strangers else ""
        detail = f"Received at {where}. {knocked}"
        self.refuse(absent(self.missing, self.nnodes, self._seconds, detail), late=True)


def reachable_address(job: Job) -> str:
    """Return the address that --master-addr means on host 0, once its name is known.
    ConfigurationError where only this host itself could reach it."""
    host = job.master_addr
    if is_loopback(host):
        return LOOPBACK
    address = _resolved(host)
    if is_loopback(address):
        raise ConfigurationError(
            "Other hosts cannot reach this one at --master-addr, which is a loopback address here. "
            f"Received: {host}, which this host resolves to {address} (look at /etc/hosts). Give "
            f"{_example()} as --master-addr on every host."
        )
    return address


def _resolved(host: str) -> str:
    limit = time.monotonic() + startup_seconds()
    while True:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            return str(found[0][4][0])
        except OSError as error:
            if time.monotonic() > limit:
                raise ConfigurationError(
                    f"Host 0 cannot resolve its own name. Received: --master-addr {host} "
                    f"({error.strerror}). Give an address of this host."
                ) from error
        time.sleep(_PAUSE_SECONDS)


def _example() -> str:
    """Return an address of this host that others may reach. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of nobody: it only picks the route
            address: str = probe.getsockname()[0]
        except OSError:
            return "its address in the network"
    return f"its address in the network, such as {address},"
