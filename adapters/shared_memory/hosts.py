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
    leaders = range(0, place.world_size, place.local_world_size)
    between = everybody.group(leaders)
    return Hierarchical(inside, between, everybody, place.local_world_size)


def _inside(place: Cluster) -> Group:
    first = place.node_rank * place.local_world_size
    ranks = tuple(range(first, first + place.local_world_size))
    return groups.of(place, ranks, _name(place))


def _name(place: Cluster) -> str:
    return f"host-{place.node_rank}"
