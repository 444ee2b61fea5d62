"""What ranks do over the job's store before any framework connects them: meet, exchange values, and
open doors to one another."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import final

from dream._errors import WorkerFailed, listed
from dream._topology import Cluster, Endpoint
from dream.cluster import launchers, settings
from dream.cluster.entrance import Welcome, expect, greet, new_word
from dream.cluster.launcher import names_of_hosts
from dream.cluster.placing import layout_of
from dream.cluster.ports import (
    LOOPBACK,
    Reservation,
    endpoint,
    is_loopback,
    listener,
    own_address,
    port_range,
    reserve,
)
from dream.cluster.rendezvous import Missing, Rendezvous, rendezvous
from dream.cluster.settings import startup_seconds

_KNOCK_SECONDS = 10.0


def meet(cluster: Cluster, name: str) -> None:
    """Return once every rank has called it with this name; WorkerFailed names those that did
    not within DREAM_STARTUP_SECONDS. A name is good for one meeting."""
    if not cluster.alone:
        exchange(cluster, f"meet-{name}", b"here", range(cluster.world_size))


def exchange(cluster: Cluster, name: str, value: bytes, ranks: Sequence[int]) -> list[bytes]:
    """Return every value of these ranks, in their order; each of them calls it with the same name.
    WorkerFailed names those that did not come. A name is good for one exchange."""
    timeout = startup_seconds()
    store = rendezvous(cluster)
    _put(store, f"{name}/{cluster.rank}", value, timeout)
    keys = [f"{name}/{rank}" for rank in ranks]
    try:
        values = store.gather(keys, timeout=timeout)
    except Missing as error:
        raise _absent(cluster, error.keys, timeout) from error
    return [values[key] for key in keys]


def detect(environ: Mapping[str, str] = os.environ, *, asks: bool = True) -> Cluster:
    """Return this process's place among the ranks of its job.

    Under starters that tell a rank nothing of the others' places (MPI, srun, ...) the first call
    on several hosts is a meeting of all ranks. asks: whether to; without, or for an environment
    that is not this process's, ranks are taken to lie in blocks."""
    place = launchers.detect(environ)
    return _located(place) if place.host and asks and environ is os.environ else place


@cache
def _located(place: Cluster) -> Cluster:
    """Have the ranks tell one another which host they are on."""
    told = _tell_all(place, "hosts", json.dumps([place.host, place.local_rank]))
    layout = layout_of([(host, local) for host, local in map(json.loads, told)], place.source)
    return replace(
        place,
        host="",
        layout=layout,
        node_rank=layout[place.rank],
        local_world_size=layout.count(layout[place.rank]),
        hosts=names_of_hosts(place.hosts[0], 1 + max(layout)),
    )


def _tell_all(place: Cluster, name: str, mine: str) -> list[str]:
    """Return what every rank says: rank 0 puts it together, so that the calls grow with the ranks
    and not with their square."""
    if place.rank:
        _put(rendezvous(place), f"{name}/{place.rank}", mine.encode(), startup_seconds())
        said = posted(place, f"{name}/all")
    else:
        told = exchange(place, name, mine.encode(), range(place.world_size))
        said = json.dumps([value.decode() for value in told]).encode()
        post(place, f"{name}/all", said)
    others = range(place.world_size) if place.rank == 0 else ()  # its store may end with it
    exchange(place, f"{name}-read", b"read", others)
    return [str(value) for value in json.loads(said)]


def post(cluster: Cluster, key: str, value: bytes) -> None:
    """Leave a value under SCOPE/NAME for whoever asks."""
    _put(rendezvous(cluster), key, value, startup_seconds())


def leave_word(cluster: Cluster, key: str, value: bytes) -> None:
    """Post a value for whoever is still there: a store that rank 0 serves goes with it."""
    with suppress(OSError):
        rendezvous(cluster).put(key, value)


def posted(cluster: Cluster, key: str) -> bytes:
    """Return what a rank has posted under SCOPE/RANK, waited for."""
    timeout = startup_seconds()
    try:
        return rendezvous(cluster).get(key, timeout=timeout)
    except Missing as error:
        raise _absent(cluster, error.keys, timeout) from error


def found(cluster: Cluster, key: str) -> bytes | None:
    """Return what is posted under SCOPE/NAME so far; None where nothing is, or all is over."""
    try:
        return rendezvous(cluster).find(key)
    except OSError:  # or does not answer now
        return None


def exchange_endpoints(cluster: Cluster) -> tuple[Endpoint, ...]:
    """Every rank's own endpoint, in rank order: the launcher's, or else ports that the ranks
    reserve now and tell one another. Empty for a process alone."""
    if cluster.workers or cluster.alone:
        return cluster.workers
    everybody = range(cluster.world_size)
    mine = Endpoint(own_host(cluster), _own_port(cluster).port)
    told = exchange(cluster, "endpoints", str(mine).encode(), everybody)
    # Rank 0's store stops answering once a framework's start holds the interpreter: it stays
    # here until everybody has read.
    exchange(cluster, "endpoints-read", b"read", everybody)
    return tuple(endpoint(value.decode(), "the rendezvous") for value in told)


@cache
def _own_port(cluster: Cluster) -> Reservation:
    """This rank's port, held for life."""
    del cluster
    return reserve(port_range())


def own_host(cluster: Cluster) -> str:
    """Return the address that the other ranks reach this one by: loopback on one host."""
    assert cluster.rendezvous is not None
    host = cluster.rendezvous.host
    return LOOPBACK if cluster.one_host or is_loopback(host) else own_address(host)


def own_listener(cluster: Cluster) -> socket.socket:
    """Make a socket that listens where the other ranks reach this one, and nowhere else."""
    return listener(own_host(cluster), port_range())


def _put(store: Rendezvous, key: str, value: bytes, timeout: float) -> None:
    """Put once the store is there: rank 0 may come later than this rank."""
    try:
        store.await_store(timeout=timeout)
    except Missing as error:
        raise WorkerFailed(
            f"Rank 0 did not check in within {timeout:g} s: nothing answers at {store.endpoint}. "
            f"Find out why it did not start, or raise {settings.STARTUP_SECONDS}."
        ) from error
    store.put(key, value)


def _absent(cluster: Cluster, keys: list[str], timeout: float) -> WorkerFailed:
    absent = listed(int(key.rpartition("/")[2]) for key in keys)
    return WorkerFailed(
        f"Of {cluster.world_size} ranks, some did not check in within {timeout:g} s: {absent}. "
        f"Received by rank {cluster.rank} from {cluster.source}. Every rank must enter the block: "
        f"check what those ranks do before it, or raise {settings.STARTUP_SECONDS}."
    )


@final
class Door:
    """A socket that others come in by: on loopback, unless the job has hosts. kind: what is behind
    it, by which others ask for it; a rank has one of a kind."""

    def __init__(self, place: Cluster, kind: str, welcome: Welcome) -> None:
        word = new_word()
        listener = own_listener(place)
        host, port = listener.getsockname()[:2]
        self._entrance = expect(listener, word, welcome, f"dream-{kind}")
        post(place, f"{kind}/{place.rank}", f"{host} {port} {word}".encode())

    def close(self) -> None:
        """Connections that were made stay."""
        self._entrance.close()


def knock(place: Cluster, kind: str, rank: int, purpose: str, seconds: float) -> socket.socket:
    """Connect to a rank's door. OSError where it is gone."""
    host, port, word = posted(place, f"{kind}/{rank}").decode().split()
    connection = socket.create_connection((host, int(port)), seconds)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet(connection, word, place.rank, purpose)
    except OSError:
        connection.close()
        raise
    return connection


def listens(place: Cluster, kind: str, rank: int) -> bool:
    """Whether somebody may be behind a rank's door: False where it had one and nobody is. (A host
    that is cut off may have somebody.)"""
    told = found(place, f"{kind}/{rank}")
    if told is None:
        return True
    host, port, _ = told.decode().split()
    try:
        socket.create_connection((host, int(port)), _KNOCK_SECONDS).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


def readable(connection: socket.socket, seconds: float) -> bool:
    """Whether something can be read, waited for: whatever the number of the descriptor, with which
    `select.select` has its difficulties."""
    ready = select.poll()
    ready.register(connection, select.POLLIN)
    return bool(ready.poll(seconds * 1000))
