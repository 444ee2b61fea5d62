"""Where a host's ranks stand, and what is reserved and served for them while they run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from dream._topology import Cluster, Endpoint
from dream.cluster import Rendezvous, _names, port_range, reserve
from dream.cluster._read import LOOPBACK
from dream.cluster.rendezvous import serve
from dream.cluster.store import Store
from dream.cluster.token import checked
from dream.launch.job import Job
from dream.launch.nodes import Node, agree


@dataclass(frozen=True, slots=True)
class Hosted:
    """The ranks' places, and the store if other hosts share it. find: looks a key up in it."""

    places: tuple[Cluster, ...]
    shared: Rendezvous | None
    find: Callable[[str], bytes | None]


@contextmanager
def hosted(job: Job) -> Iterator[Hosted]:
    """Ports and store, held from before the ranks start until after they ended."""
    with ExitStack() as held:
        numbers = _reserved(job, held)
        yield _alone(job, numbers, held) if job.nnodes == 1 else _together(job, numbers, held)


def _reserved(job: Job, held: ExitStack) -> list[int]:
    """torch's port, the ranks', and on one host the store's, which the range has to offer too."""
    within = port_range(job.environ)
    numbers = []
    for _ in range(job.n + 1 + (job.nnodes == 1)):
        port = reserve(within)
        held.callback(port.close)
        numbers.append(port.port)
    return numbers


def _alone(job: Job, ports: list[int], held: ExitStack) -> Hosted:
    token = os.urandom(16).hex()
    *ports, spare = ports
    store = _serve(Endpoint(LOOPBACK, job.master_port or spare), token, held)
    workers = tuple(Endpoint(LOOPBACK, port) for port in ports[1:])
    return Hosted(
        _places(
            job,
            workers=workers,
            hosts=("localhost",),
            master=Endpoint(LOOPBACK, ports[0]),
            rendezvous=Endpoint(LOOPBACK, store.port),
            token=token,
        ),
        shared=None,
        find=store.values.get,
    )


def _together(job: Job, ports: list[int], held: ExitStack) -> Hosted:
    token = checked(job.environ.get(_names.TOKEN, ""))
    assert job.master_port is not None
    at = Endpoint(job.master_addr, job.master_port)
    if job.node_rank == 0:
        _serve(at, token, held)
    store = Rendezvous(at, token)
    nodes = agree(job, store, ports)
    _say_ports(job, nodes[job.node_rank])
    return Hosted(
        _places(
            job,
            workers=tuple(worker for node in nodes for worker in node.workers),
            hosts=tuple(node.name for node in nodes),
            master=nodes[0].master,
            rendezvous=at,
            token=token,
        ),
        shared=store,
        find=store.find,
    )


def _say_ports(job: Job, here: Node) -> None:
    """What a firewall has to let through to this host."""
    within = port_range(job.environ)
    ports = f"from {within}" if within else "that are free; --port-range holds them to some"
    store = f"port {job.master_port} and " if job.node_rank == 0 else ""
    line = f"node {job.node_rank} listens at {here.master.host} on {store}ports {ports}"
    print(f"dream run: {line}", file=sys.stderr, flush=True)


def _serve(endpoint: Endpoint, token: str, held: ExitStack) -> Store:
    store = serve(endpoint, token, "another --master-port, or the --master-addr of this host")
    held.callback(store.close)
    return store


def _places(
    job: Job,
    *,
    workers: tuple[Endpoint, ...],
    hosts: tuple[str, ...],
    master: Endpoint,
    rendezvous: Endpoint,
    token: str,
) -> tuple[Cluster, ...]:
    return tuple(
        Cluster(
            source="dream run",
            rank=job.node_rank * job.n + local_rank,
            local_rank=local_rank,
            node_rank=job.node_rank,
            world_size=job.world_size,
            local_world_size=job.n,
            hosts=hosts,
            master=master,
            rendezvous=rendezvous,
            token=token,
            workers=workers,
        )
        for local_rank in range(job.n)
    )
