"""torchrun's variables, which `dream run` shares.

Under `dream run` the store's address and the workers' endpoints come along. Under torchrun rank 0
serves the store at MASTER_PORT + 1 (or DREAM_RENDEZVOUS_PORT) and the workers' endpoints are
exchanged over it. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand are enough on one
host; several need DREAM_TOKEN too.
"""

from __future__ import annotations

from collections.abc import Mapping

from dream._errors import ConfigurationError
from dream._topology import Cluster, Endpoint
from dream.cluster import _names, tf_config
from dream.cluster._read import endpoint, integer, inward, is_loopback, next_port, port, require
from dream.cluster.token import checked, token_of

RANK = "RANK"
LOCAL_RANK = "LOCAL_RANK"
WORLD_SIZE = "WORLD_SIZE"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"
GROUP_RANK = "GROUP_RANK"
_RUN = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
"""What else names a job, and its start, under torchrun itself."""


def read(environ: Mapping[str, str]) -> Cluster | None:
    if not any(environ.get(name) for name in (RANK, WORLD_SIZE, LOCAL_RANK)):
        return None
    source = "dream run" if environ.get(_names.RENDEZVOUS) else "torchrun"
    require(environ, (RANK, WORLD_SIZE), source)
    rank = integer(environ, RANK, source)
    world_size = integer(environ, WORLD_SIZE, source, minimum=1)
    alone = Cluster(source=source, rank=rank, world_size=world_size)  # which checks the rank
    if world_size == 1:
        return alone
    require(environ, (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), source)
    master = Endpoint(environ[MASTER_ADDR], port(environ, MASTER_PORT, source))
    local_rank, local_world_size = _local(environ, source, rank, world_size, master)
    hosts = _hosts(environ, source, master, world_size, local_world_size)
    cluster = Cluster(
        source=source,
        rank=rank,
        local_rank=local_rank,
        node_rank=_node_rank(environ, source, rank, local_world_size, len(hosts)),
        world_size=world_size,
        local_world_size=local_world_size,
        hosts=hosts,
        master=master,
        rendezvous=_rendezvous(environ, source, master),
        token=_token(environ, source, master, world_size, hosts),
        serves_rendezvous=source != "dream run" and rank == 0,
        workers=_workers(environ, source, rank, world_size),
    )
    return inward(cluster)


def _local(
    environ: Mapping[str, str], source: str, rank: int, world_size: int, master: Endpoint
) -> tuple[int, int]:
    """The place on this host. It can be left out where everything is on this host."""
    names = (LOCAL_RANK, LOCAL_WORLD_SIZE)
    if is_loopback(master.host) and not any(environ.get(name) for name in names):
        return rank, world_size
    require(environ, (RANK, WORLD_SIZE, *names), source)
    return integer(environ, LOCAL_RANK, source), integer(environ, LOCAL_WORLD_SIZE, source, 1)


def _hosts(
    environ: Mapping[str, str], source: str, master: Endpoint, world_size: int, local: int
) -> tuple[str, ...]:
    """The hosts' names. torchrun tells how many there are, and the name of the first alone."""
    if environ.get(_names.HOSTS):
        return tuple(environ[_names.HOSTS].split(","))
    if local > world_size or world_size % local:
        raise ConfigurationError(
            f"Hosts must start equally many ranks. Received from {source}: "
            f"{WORLD_SIZE}={world_size}, {LOCAL_WORLD_SIZE}={local}. Start as many on each host."
        )
    return (master.host, *(f"node{node}" for node in range(1, world_size // local)))


def _node_rank(
    environ: Mapping[str, str], source: str, rank: int, local_world_size: int, nodes: int
) -> int:
    node = rank // local_world_size
    if environ.get(GROUP_RANK):
        node = integer(environ, GROUP_RANK, source)
    if node >= nodes:
        raise ConfigurationError(
            f"The node rank must be below the number of hosts. Received from {source}: node rank "
            f"{node}, {nodes} hosts. Correct the launcher's environment."
        )
    return node


def _rendezvous(environ: Mapping[str, str], source: str, master: Endpoint) -> Endpoint:
    if environ.get(_names.RENDEZVOUS):
        return endpoint(environ[_names.RENDEZVOUS], _names.RENDEZVOUS)
    if environ.get(_names.RENDEZVOUS_PORT):
        return Endpoint(master.host, port(environ, _names.RENDEZVOUS_PORT, source))
    return Endpoint(master.host, next_port(master.port))


def _token(
    environ: Mapping[str, str],
    source: str,
    master: Endpoint,
    world_size: int,
    hosts: tuple[str, ...],
) -> str:
    if source == "dream run":
        return checked(environ.get(_names.TOKEN, ""))
    host = "loopback" if is_loopback(master.host) else master.host  # by hand it has several names
    run = [environ.get(name, "") for name in _RUN]
    names = ("torchrun", host, master.port, world_size, *run)
    return token_of(environ, source, names, one_host=len(hosts) == 1)


def _workers(
    environ: Mapping[str, str], source: str, rank: int, world_size: int
) -> tuple[Endpoint, ...]:
    """TF_CONFIG's list where there is one; it must then tell the same place."""
    task = tf_config.parse(environ)
    if task is None:
        return ()
    if (task.index, len(task.workers)) != (rank, world_size):
        raise ConfigurationError(
            f"{source} and TF_CONFIG tell different places. Received: {RANK}={rank} of "
            f"{WORLD_SIZE}={world_size}, TF_CONFIG worker {task.index} of {len(task.workers)}. "
            "Unset one of them."
        )
    return task.workers
