"""Horovod's variables, as its own launcher sets them.

The launcher's store at HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT is dream's rendezvous too; an
address of the form host:port/token carries the store's token. torch's store is served by rank 0,
one port above the rendezvous, or at MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

from collections.abc import Mapping

from dream._errors import ConfigurationError
from dream._topology import Cluster, Endpoint
from dream.cluster._read import LARGEST_PORT, integer, port, require

_SOURCE = "Horovod's launcher"
_PLACE = (
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
)
_STORE = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")


def read(environ: Mapping[str, str]) -> Cluster | None:
    if not any(environ.get(name) for name in _PLACE[:2]):
        return None
    require(environ, _PLACE[:2], _SOURCE)
    rank = integer(environ, "HOROVOD_RANK", _SOURCE)
    world_size = integer(environ, "HOROVOD_SIZE", _SOURCE, minimum=1)
    if world_size == 1:
        return Cluster(source=_SOURCE, rank=rank)
    require(environ, (*_PLACE, *_STORE), _SOURCE)
    store, token = _rendezvous(environ)
    nodes = integer({"HOROVOD_CROSS_SIZE": "1", **environ}, "HOROVOD_CROSS_SIZE", _SOURCE, 1)
    return Cluster(
        source=_SOURCE,
        rank=rank,
        local_rank=integer(environ, "HOROVOD_LOCAL_RANK", _SOURCE),
        node_rank=integer({"HOROVOD_CROSS_RANK": "0", **environ}, "HOROVOD_CROSS_RANK", _SOURCE),
        world_size=world_size,
        local_world_size=integer(environ, "HOROVOD_LOCAL_SIZE", _SOURCE, minimum=1),
        hosts=("localhost",) if nodes == 1 else tuple(f"node{node}" for node in range(nodes)),
        master=_master(environ, store, nodes),
        rendezvous=store,
        token=token,
    )


def _rendezvous(environ: Mapping[str, str]) -> tuple[Endpoint, str]:
    address, _, token = environ[_STORE[0]].partition("/")
    number = port(environ, _STORE[1], _SOURCE)
    return Endpoint(address.partition(":")[0] if token else address, number), token


def _master(environ: Mapping[str, str], store: Endpoint, nodes: int) -> Endpoint:
    if environ.get("MASTER_ADDR") or environ.get("MASTER_PORT"):
        require(environ, ("MASTER_ADDR", "MASTER_PORT"), _SOURCE)
        return Endpoint(environ["MASTER_ADDR"], port(environ, "MASTER_PORT", _SOURCE))
    if nodes > 1:
        raise ConfigurationError(
            f"{_SOURCE} does not tell rank 0's host. Received: HOROVOD_CROSS_SIZE={nodes}, "
            "MASTER_ADDR unset. Set MASTER_ADDR and MASTER_PORT on every rank."
        )
    return Endpoint("127.0.0.1", store.port + 1 if store.port < LARGEST_PORT else store.port - 1)
