"""Where a host's ranks stand, and what is reserved and served for them while they run."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from dream._topology import Cluster, Endpoint
from dream.cluster import Rendezvous, port_range, reserve, settings, startup_seconds
from dream.cluster.ports import LOOPBACK
from dream.cluster.rendezvous import serve
from dream.cluster.store import Store
from dream.cluster.token import checked
from dream.launch.hosts.hub import Hub
from dream.launch.hosts.link import HostLink
from dream.launch.hosts.meeting import Meeting, Node, own_node, reachable_address
from dream.launch.job import Job
from dream.launch.output import SCREEN

_SECONDS_PER_STEP = 3.0
"""Of a call of node 0. A connection is asked for again until it comes."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """The ranks' places, and the link to the other hosts if there are any. find: looks a key up
    in the job's store."""

    places: tuple[Cluster, ...]
    link: HostLink | None
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
    master, *workers = (Endpoint(LOOPBACK, port) for port in ports)
    at = Endpoint(LOOPBACK, store.port)
    places = _places(job, 0, ("localhost",), at, token, master, tuple(workers))
    return Hosted(places, link=None, find=store.values.get)


def _together(job: Job, ports: list[int], held: ExitStack) -> Hosted:
    token = checked(job.environ.get(settings.TOKEN, ""))
    assert job.master_port is not None
    at = Endpoint(job.master_addr, job.master_port)
    store = Rendezvous(at, token, _SECONDS_PER_STEP)
    if job.node_rank == 0:
        link = _first(job, ports, token, held)
    else:
        link = HostLink(own_node(job, ports), store.stay, str(at), lambda: None)
    held.push(_leave(link))
    nodes = link.agree()
    here = [node.number for node in nodes].index(job.node_rank)
    _say_ports(job, nodes[here])
    if job.hosts_change:
        SCREEN.say(f"{len(nodes)} of {job.nnodes} hosts: {', '.join(map(str, nodes))}")
    workers = tuple(worker for node in nodes for worker in node.workers)
    hosts = tuple(node.name for node in nodes)
    places = _places(job, here, hosts, at, token, nodes[0].master, workers)
    return Hosted(places, link, find=lambda key: None if link.silent else store.find(key))


def _say_ports(job: Job, here: Node) -> None:
    """Say what a firewall has to let through to this host."""
    within = port_range(job.environ)
    ports = f"from {within}" if within else "that are free; --port-range holds them to some"
    store = f"port {job.master_port} and " if job.node_rank == 0 else ""
    SCREEN.say(f"node {job.node_rank} listens at {here.master.host} on {store}ports {ports}")


def _first(job: Job, ports: list[int], token: str, held: ExitStack) -> HostLink:
    """Node 0's, whose launcher serves the store and the hub. It is held by a pair of sockets: it
    stands though the network does not."""
    assert job.master_port is not None
    own = replace(own_node(job, ports), address=reachable_address(job))
    served = _serve(Endpoint(job.master_addr, job.master_port), token, held)
    seconds = startup_seconds()
    meeting = Meeting(job.nnodes, seconds, job.min_nodes or 0, job.node_timeout / 3)
    meeting.join(own.write())  # before any other: it is what they are held against
    where = f"{job.master_addr}:{served.port}"
    hub = Hub(meeting, where, seconds)
    held.callback(hub.close)
    served.stand_by(hub)

    def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        hub.take(theirs)
        return ours

    return HostLink(own, connect, where, hub.close)


def _leave(link: HostLink) -> Callable[..., None]:
    """Return what is to be done at the end, however it comes."""

    def leave(kind: object, error: BaseException | None, trace: object) -> None:
        del kind, trace
        if error is not None:
            link.failed(error)
        link.close()

    return leave


def _serve(endpoint: Endpoint, token: str, held: ExitStack) -> Store:
    store = serve(endpoint, token, "another --master-port, or the --master-addr of this host")
    held.callback(store.close)
    return store


def _places(job: Job, here: int, hosts: tuple[str, ...], rendezvous: Endpoint, token: str,
            master: Endpoint, workers: tuple[Endpoint, ...]) -> tuple[Cluster, ...]:  # fmt: skip
    return tuple(
        Cluster(
            source="dream run",
            rank=here * job.n + local_rank,
            local_rank=local_rank,
            node_rank=here,
            world_size=job.n * len(hosts),
            local_world_size=job.n,
            hosts=hosts,
            master=master,
            rendezvous=rendezvous,
            token=token,
            workers=workers,
        )
        for local_rank in range(job.n)
    )
