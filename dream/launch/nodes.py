"""Several hosts, each with its own launcher: how they agree at the start."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass

from dream._errors import ConfigurationError, WorkerFailed
from dream._topology import Endpoint
from dream.cluster import Rendezvous, _names, startup_seconds
from dream.cluster._read import is_loopback
from dream.cluster.ports import own_address
from dream.cluster.rendezvous import Missing
from dream.launch.job import Job


@dataclass(frozen=True, slots=True)
class Node:
    """What a host's launcher tells the others. master: where its rank 0 would serve torch."""

    name: str
    n: int
    master: Endpoint
    workers: tuple[Endpoint, ...]


def agree(job: Job, store: Rendezvous, ports: list[int]) -> list[Node]:
    """Every host's facts, in node order. ports: torch's, then the workers'."""
    timeout = startup_seconds()
    try:
        store.await_store(timeout=timeout)
        _publish(job, store, ports)
        keys = [f"node/{node}" for node in range(job.nnodes)]
        values = store.gather(keys, timeout=timeout)
    except Missing as error:
        raise _absent(error.keys, job, timeout) from error
    nodes = [_node(values[key]) for key in keys]
    if len({node.n for node in nodes}) > 1:
        raise ConfigurationError(
            "Every host must start equally many ranks. Received: -n "
            f"{', '.join(str(node.n) for node in nodes)}. Give every host the same -n."
        )
    return nodes


def _publish(job: Job, store: Rendezvous, ports: list[int]) -> None:
    key = f"node/{job.node_rank}"
    if store.find(key) is not None:
        raise ConfigurationError(
            f"This node rank is taken. Received: --node-rank {job.node_rank} twice at "
            f"{store.endpoint}. Give every host its own."
        )
    address = "127.0.0.1" if is_loopback(job.master_addr) else own_address(job.master_addr)
    facts = {"name": socket.gethostname(), "n": job.n, "address": address, "ports": ports}
    store.put(key, json.dumps(facts).encode())


def _node(value: bytes) -> Node:
    facts = json.loads(value)
    endpoints = [Endpoint(facts["address"], port) for port in facts["ports"]]
    return Node(facts["name"], facts["n"], endpoints[0], tuple(endpoints[1:]))


def _absent(keys: list[str], job: Job, timeout: float) -> WorkerFailed:
    nodes = ["0" if key == "store" else key.rpartition("/")[2] for key in keys]
    return WorkerFailed(
        f"Of {job.nnodes} hosts, the launchers of these nodes did not come within {timeout:g} s: "
        f"{', '.join(nodes)}. Received at {job.master_addr}:{job.master_port}. Start "
        f"`dream run --node-rank` on each, or raise {_names.STARTUP_SECONDS}."
    )
