"""What hosts compare when they meet, and what they are told where they cannot go together. Pure,
save for what a host knows of itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from dream._topology import Endpoint
from dream.cluster import _names
from dream.launch.job import Job

_COMPARED = {
    "dream": ("dream-systems",),
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "keras": ("keras",),
    "horovod": ("horovod",),
}
"""The packages that ranks of several hosts must have of one version, and who distributes them."""


@dataclass(frozen=True, slots=True)
class Node:
    """What a host's launcher tells the others.

    number: its --node-rank. launcher: drawn at its start, so that one that comes back is told
    from another that was given the same number. address: where the others reach it. ports:
    torch's store, should this be node 0; then a port for each rank. node_timeout: what it was
    given; the largest counts.
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
    )


def versions() -> dict[str, str]:
    """Of Python and the installed packages that have to be alike; nothing is imported."""
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
    """Why these hosts cannot go together; empty where they can. A package that a host does not
    have is not compared: ranks there may need another."""
    known = sorted(nodes, key=lambda node: node.number)
    alike = "Give every host the same."
    found = (
        _differ(known, "--nnodes", lambda node: str(node.nnodes), alike),
        _twice(known),
        _differ(known, "-n", lambda node: str(node.n), alike),
        *(_versions_differ(known, name) for name in ("Python", *_COMPARED)),
    )
    return next(filter(None, found), "")


def _versions_differ(nodes: list[Node], name: str) -> str:
    having = [node for node in nodes if name in node.versions]
    remedy = "Install the same version on every host."
    return _differ(having, name, lambda node: node.versions[name], remedy)


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
        f"{_names.STARTUP_SECONDS}."
    )
