"""Where each launcher puts this process: a row a launcher, code only where a row does not do.

The first whose variables are there counts. Under `dream run` the store's address and the workers'
endpoints come along; under any other rank 0 serves the store, one port above torch's, or at
DREAM_RENDEZVOUS_PORT, and the workers' endpoints are exchanged over it. Several hosts need
DREAM_TOKEN, save on Spark, where Horovod's launcher gives its processes a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

from dream._errors import ConfigurationError
from dream._topology import Cluster, Endpoint
from dream.cluster import settings, tf_config
from dream.cluster.ports import LOOPBACK, endpoint, is_loopback, next_port
from dream.cluster.settings import integer, port, require
from dream.cluster.token import checked, token_of

_MASTER = ("MASTER_ADDR", "MASTER_PORT")


@final
@dataclass(frozen=True, slots=True)
class Launcher:
    """Which variable tells what. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are torchrun's.

    source: its name in messages. rank, size, local_rank, local_size: this process's place.
    node, nodes: this host's number, and how many hosts there are; without them hosts are taken to
    have equally many ranks, in order. job: what names the job, and its start, for its token.
    beside: a port on rank 0's host that the launcher holds for itself: where MASTER_ADDR and
    MASTER_PORT are not set, dream takes the two above it, on one host.
    by_hand: users set these variables themselves, and those of the place on the host can be left
    out where all ranks are on one. ours: the launcher serves the job's store.
    """

    source: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    job: tuple[str, ...]
    node: str = ""
    nodes: str = ""
    beside: str = ""
    by_hand: bool = False
    ours: bool = False

    def read(self, environ: Mapping[str, str]) -> Cluster | None:
        """Give the place; None where this launcher's variables are absent."""
        if self.ours and not environ.get(settings.RENDEZVOUS):
            return None
        marks = (self.rank, self.size) + (self.local_rank,) * self.by_hand
        if not any(environ.get(name) for name in marks):
            return None
        require(environ, (self.rank, self.size), self.source)
        rank = integer(environ, self.rank, self.source)
        world_size = integer(environ, self.size, self.source, minimum=1)
        alone = Cluster(self.source, rank, world_size=world_size)  # which checks the rank
        return alone if world_size == 1 else self._among_others(environ, alone)

    def _among_others(self, environ: Mapping[str, str], alone: Cluster) -> Cluster:
        rank, world_size = alone.rank, alone.world_size
        needed = (self.beside,) if self.beside else _MASTER
        require(environ, (self.rank, self.size, *needed), self.source)
        local_rank, local_size = self._on_this_host(environ, rank, world_size)
        nodes = self._nodes(environ, world_size, local_size)
        master, store = self._services(environ, nodes)
        hosts = environ.get(settings.HOSTS) if self.by_hand else None
        return replace(
            alone,
            local_rank=local_rank,
            node_rank=self._node(environ, rank // local_size, nodes),
            local_world_size=local_size,
            hosts=tuple(hosts.split(",")) if hosts else _names(master.host, nodes),
            master=master,
            rendezvous=store,
            token=self._token(environ, world_size, nodes),
            serves_rendezvous=rank == 0 and not self.ours,
            workers=self._workers(environ, rank, world_size),
        )

    def _on_this_host(
        self, environ: Mapping[str, str], rank: int, world_size: int
    ) -> tuple[int, int]:
        names = (self.local_rank, self.local_size)
        if self.by_hand and is_loopback(environ[_MASTER[0]]) and not any(map(environ.get, names)):
            return rank, world_size
        require(environ, (self.rank, self.size, *names), self.source)
        local_rank = integer(environ, self.local_rank, self.source)
        return local_rank, integer(environ, self.local_size, self.source, 1)

    def _nodes(self, environ: Mapping[str, str], world_size: int, local_size: int) -> int:
        if self.by_hand and environ.get(settings.HOSTS):
            return len(environ[settings.HOSTS].split(","))
        if environ.get(self.nodes):
            return integer(environ, self.nodes, self.source, 1)
        if local_size > world_size or world_size % local_size:
            raise ConfigurationError(
                f"Hosts must start equally many ranks. Received from {self.source}: "
                f"{self.size}={world_size}, {self.local_size}={local_size}. Start as many on each "
                "host."
            )
        return world_size // local_size

    def _node(self, environ: Mapping[str, str], node: int, nodes: int) -> int:
        if environ.get(self.node):
            node = integer(environ, self.node, self.source)
        if node >= nodes:
            raise ConfigurationError(
                f"The node rank must be below the number of hosts. Received from {self.source}: "
                f"node rank {node}, {nodes} hosts. Correct the launcher's environment."
            )
        return node

    def _services(self, environ: Mapping[str, str], nodes: int) -> tuple[Endpoint, Endpoint]:
        """Choose where rank 0 serves torch's store and dream's."""
        if not self.beside or any(map(environ.get, _MASTER)):
            require(environ, _MASTER, self.source)
            master = Endpoint(environ[_MASTER[0]], port(environ, _MASTER[1], self.source))
            number = next_port(master.port)
        elif nodes > 1:
            raise ConfigurationError(
                f"{self.source} does not tell rank 0's host. Received: {self.nodes}={nodes}, "
                "MASTER_ADDR unset. Set MASTER_ADDR and MASTER_PORT on every rank."
            )
        else:
            number = next_port(port(environ, self.beside, self.source))
            master = Endpoint(LOOPBACK, next_port(number))
        if self.ours:
            return master, endpoint(environ[settings.RENDEZVOUS], settings.RENDEZVOUS)
        if environ.get(settings.RENDEZVOUS_PORT):
            number = port(environ, settings.RENDEZVOUS_PORT, self.source)
        return master, Endpoint(master.host, number)

    def _token(self, environ: Mapping[str, str], world_size: int, nodes: int) -> str:
        if self.ours:
            return checked(environ.get(settings.TOKEN, ""))
        known = [environ.get(name, "") for name in self.job]
        job = ["loopback" if is_loopback(word) else word for word in known]  # it has several names
        return token_of(environ, self.source, [self.source, *job, world_size], one_host=nodes == 1)

    def _workers(
        self, environ: Mapping[str, str], rank: int, world_size: int
    ) -> tuple[Endpoint, ...]:
        """Take TF_CONFIG's list where there is one; it must then tell the same place."""
        task = tf_config.parse(environ)
        if task is None:
            return ()
        if (task.index, len(task.workers)) != (rank, world_size):
            raise ConfigurationError(
                f"{self.source} and TF_CONFIG tell different places. Received: {self.rank}={rank} "
                f"of {self.size}={world_size}, TF_CONFIG worker {task.index} of "
                f"{len(task.workers)}. Unset one of them."
            )
        return task.workers


def _names(first: str, nodes: int) -> tuple[str, ...]:
    """Name the hosts, of which launchers tell how many there are, and the name of the first."""
    return (first, *(f"node{node}" for node in range(1, nodes)))


TORCHRUN = Launcher(
    source="torchrun",
    rank="RANK",
    size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    local_size="LOCAL_WORLD_SIZE",
    node="GROUP_RANK",
    job=(*_MASTER, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    by_hand=True,
)
DREAM = replace(TORCHRUN, source="dream run", ours=True)
HOROVOD = Launcher(
    source="Horovod's launcher",
    rank="HOROVOD_RANK",
    size="HOROVOD_SIZE",
    local_rank="HOROVOD_LOCAL_RANK",
    local_size="HOROVOD_LOCAL_SIZE",
    node="HOROVOD_CROSS_RANK",
    nodes="HOROVOD_CROSS_SIZE",
    job=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    beside="HOROVOD_GLOO_RENDEZVOUS_PORT",  # its own store, which is open to whoever finds it
)

READERS: tuple[Callable[[Mapping[str, str]], Cluster | None], ...] = (
    DREAM.read,
    TORCHRUN.read,
    tf_config.read,
    HOROVOD.read,
)
"""In the order in which they are trusted. A launcher that a row describes needs no more than that
row; another brings a function of its own."""

PROCESS_COUNTS = {
    TORCHRUN.size: TORCHRUN.local_rank,
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMI_SIZE": "PMI_LOCAL_RANK",
    "SLURM_STEP_NUM_TASKS": "SLURM_LOCALID",
}
"""How many processes a launcher has started, and which one on its host this is: of those, too,
whose places are not read."""


def detect(environ: Mapping[str, str] = os.environ) -> Cluster:
    """Return this process's place, from the first launcher whose variables are there."""
    places = (read(environ) for read in READERS)
    return inward(next((place for place in places if place is not None), Cluster()))


def inward(cluster: Cluster) -> Cluster:
    """Put all addresses of a job on one host on loopback, whatever name the launcher has for the
    host: what the job listens on, nobody else reaches."""
    if cluster.alone or not cluster.one_host:
        return cluster

    def on_loopback(there: Endpoint | None) -> Endpoint | None:
        return there and Endpoint(LOOPBACK, there.port)

    return replace(
        cluster,
        master=on_loopback(cluster.master),
        rendezvous=on_loopback(cluster.rendezvous),
        workers=tuple(Endpoint(LOOPBACK, worker.port) for worker in cluster.workers),
    )


_SHOWN = (TORCHRUN.rank, TORCHRUN.size, TORCHRUN.local_rank, TORCHRUN.local_size, TORCHRUN.node,
          *_MASTER, "TF_CONFIG")  # fmt: skip
_PREFIXES = ("DREAM_", "HOROVOD_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_",
             "KUBERNETES_")  # fmt: skip
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_RIDING = re.compile(r"^([^/\s]+:\d+)/\S+$")
"""The rendezvous's address with the token in it."""


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what launchers have set, ours and others; secrets stay secret."""
    found = {k: v for k, v in sorted(environ.items()) if k in _SHOWN or k.startswith(_PREFIXES)}
    return {
        name: "(set)" if any(word in name for word in _SECRET) else _RIDING.sub(r"\1/(set)", value)
        for name, value in found.items()
    }
