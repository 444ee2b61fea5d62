"""Horovod's variables, as its own launcher sets them.

The launcher's store at HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT is open to whoever finds its port,
so dream does not use it: rank 0 serves dream's own, one port above it, and torch's beside that; or
above MASTER_ADDR and MASTER_PORT, and at DREAM_RENDEZVOUS_PORT. Several hosts need DREAM_TOKEN,
save on Spark, where the launcher gives its processes a secret.
"""

from __future__ import annotations

from collections.abc import Mapping

from dream._errors import ConfigurationError
from dream._topology import Cluster, Endpoint
from dream.cluster import _names
from dream.cluster._read import integer, next_port, port, require
from dream.cluster.token import token_of

SOURCE = "Horovod's launcher"
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
    require(environ, _PLACE[:2], SOURCE)
    rank = integer(environ, "HOROVOD_RANK", SOURCE)
    world_size = integer(environ, "HOROVOD_SIZE", SOURCE, minimum=1)
    if world_size == 1:
        return Cluster(source=SOURCE, rank=rank)
    require(environ, (*_PLACE, *_STORE), SOURCE)
    nodes = integer({"HOROVOD_CROSS_SIZE": "1", **environ}, "HOROVOD_CROSS_SIZE", SOURCE, 1)
    master, store = _services(environ, nodes)
    address, _, _ = environ[_STORE[0]].partition("/")
    names = (SOURCE, address, environ[_STORE[1]], world_size)
    return Cluster(
        source=SOURCE,
        rank=rank,
        local_rank=integer(environ, "HOROVOD_LOCAL_RANK", SOURCE),
        node_rank=integer({"HOROVOD_CROSS_RANK": "0", **environ}, "HOROVOD_CROSS_RANK", SOURCE),
        world_size=world_size,
        local_world_size=integer(environ, "HOROVOD_LOCAL_SIZE", SOURCE, minimum=1),
        hosts=("localhost",) if nodes == 1 else tuple(f"node{node}" for node in range(nodes)),
        master=master,
        rendezvous=store,
        token=token_of(environ, SOURCE, names, one_host=nodes == 1),
        serves_rendezvous=rank == 0,
    )


def _services(environ: Mapping[str, str], nodes: int) -> tuple[Endpoint, Endpoint]:
    """Where rank 0 serves torch's store and dream's."""
    if environ.get("MASTER_ADDR") or environ.get("MASTER_PORT"):
        require(environ, ("MASTER_ADDR", "MASTER_PORT"), SOURCE)
        master = Endpoint(environ["MASTER_ADDR"], port(environ, "MASTER_PORT", SOURCE))
        number = next_port(master.port)
    elif nodes > 1:
        raise ConfigurationError(
            f"{SOURCE} does not tell rank 0's host. Received: HOROVOD_CROSS_SIZE={nodes}, "
            "MASTER_ADDR unset. Set MASTER_ADDR and MASTER_PORT on every rank."
        )
    else:
        number = next_port(port(environ, _STORE[1], SOURCE))
        master = Endpoint("127.0.0.1", next_port(number))
    if environ.get(_names.RENDEZVOUS_PORT):
        number = port(environ, _names.RENDEZVOUS_PORT, SOURCE)
    return master, Endpoint(master.host, number)
