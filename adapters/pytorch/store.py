"""Where torch listens: its store, through which process groups connect, and gloo's connections."""

from __future__ import annotations

import socket
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

from torch import distributed

from dream import cluster
from dream._log import logger
from dream._topology import Cluster, Endpoint
from dream.shared_memory import listening

_LIBRARY, _NCCL = "libtorch_cpu", "libnccl"
_made = count()


def hold(place: Cluster, *, nccl: bool) -> None:
    """Have torch listen where this job's ranks are, before it does; rank 0 says what is open."""
    cluster.export_interface(place)
    who = "torch's store, gloo and NCCL" if nccl else "torch's store and gloo"
    why = listening.hold(place, who, (_LIBRARY, _NCCL) if nccl else (_LIBRARY,))
    if place.rank != 0:
        return
    if not place.one_host:
        listening.say_open(place, who)
    elif why:
        logger.warning("%s take connections of every user of this machine: %s", who, why)


def store(place: Cluster, timeout: timedelta) -> Any:
    """The job's TCPStore, which rank 0 serves at its own address alone and tells the others: at
    the launcher's port where that is free, since torchrun may listen there itself."""
    key = f"torch/store-{next(_made)}"  # each rank makes as many: a script may end a group
    if place.rank == 0:
        own = _listener(place)
        host, port = own.getsockname()[:2]
        cluster.post(place, key, f"{host}:{port}".encode())
        return _joined(place, Endpoint(host, port), timeout, own.detach())
    host, _, port = cluster.posted(place, key).decode().rpartition(":")
    return _joined(place, Endpoint(host, int(port)), timeout)


def _listener(place: Cluster) -> socket.socket:
    if place.master is not None:
        with suppress(OSError):
            return cluster.listener_at(cluster.own_host(place), place.master.port)
    return cluster.own_listener(place)


def _joined(place: Cluster, at: Endpoint, timeout: timedelta, own: int | None = None) -> Any:
    """Rank 0 stays until everybody has come, and so until everybody has read where to."""
    return distributed.TCPStore(  # type: ignore[attr-defined]
        at.host,
        at.port,
        place.world_size,
        is_master=own is not None,
        timeout=timeout,
        wait_for_workers=True,
        master_listen_fd=own,
    )
