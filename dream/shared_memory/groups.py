"""The group of a job's ranks in shared memory, one for a process: its order of calls goes on from
block to block."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from dream._errors import NotInstalled, Unsupported
from dream._log import logger
from dream._topology import Cluster
from dream.shared_memory.group import Group
from dream.shared_memory.meeting import connect

NAME = "shared_memory"


@cache
def of(place: Cluster, ranks: tuple[int, ...], name: str) -> Group:
    """The group of these ranks, this one among them. The first call is a meeting of theirs.
    name: no other group's."""
    return connect(place, ranks, name)


def everybody(place: Cluster) -> Group:
    """All ranks of a job on one host."""
    return of(place, tuple(range(place.world_size)), "all")


def some(place: Cluster, parent: Sequence[int], ranks: Sequence[int], name: str) -> Group | None:
    """Those at some places of a group; None on the others."""
    chosen = tuple(parent[rank] for rank in ranks)
    return of(place, chosen, name) if place.rank in chosen else None


@cache
def serves(place: Cluster) -> bool:
    """Whether it can be had by all ranks alike: what `reduction="auto"` asks where tensors are on
    the CPU. The answer is said."""
    if place.alone or place.local_world_size != place.world_size:
        return False
    try:
        everybody(place)
    except (NotInstalled, Unsupported) as error:
        logger.info("reduction='auto' leaves out shared memory: %s", error)
        return False
    logger.info("reduction='auto' takes shared_memory: all %d ranks are here", place.world_size)
    return True
