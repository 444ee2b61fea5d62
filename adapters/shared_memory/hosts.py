"""Several hosts: shared memory inside each, a framework's own collectives between their leaders."""

from __future__ import annotations

from dream._topology import Cluster
from dream.collectives import Hierarchical, Wire
from dream.shared_memory import Group, groups
from dream.strategies import registry


def torch(place: Cluster, reduction: str) -> Wire:
    """Between hosts: torch's process group."""
    del reduction
    from dream.adapters.shared_memory.pytorch import SharedMemory

    everybody = registry.load("dream.adapters.pytorch.collectives:connect")(place, "gloo")
    return _over(place, SharedMemory(place, _inside(place), _name(place)), everybody)


def tensorflow(place: Cluster, reduction: str) -> Wire:
    """Between hosts: TensorFlow's collectives."""
    del reduction
    from dream.adapters.shared_memory.tensorflow import SharedMemory

    everybody = registry.reduction("tensorflow", "grpc")(place, "grpc")
    return _over(place, SharedMemory(place, _inside(place), _name(place)), everybody)


def _over(place: Cluster, inside: Wire, everybody: Wire) -> Wire:
    hosts = [place.ranks_on(node) for node in range(len(place.hosts))]
    between = everybody.group([ranks[0] for ranks in hosts])
    return Hierarchical(inside, between, everybody, hosts)


def _inside(place: Cluster) -> Group:
    return groups.of(place, place.ranks_on(place.node_rank), _name(place))


def _name(place: Cluster) -> str:
    return f"host-{place.node_rank}"
