"""A launcher as a row of names: which variable tells what, and how a place is read off them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

from dream._errors import ConfigurationError
from dream._topology import Cluster, Endpoint
from dream.cluster import settings, tf_config
from dream.cluster.ports import LOOPBACK, endpoint, is_loopback, next_port, port_of
from dream.cluster.settings import integer, port, require
from dream.cluster.token import checked, token_of

MASTER = ("MASTER_ADDR", "MASTER_PORT")

Environ = Mapping[str, str]


@final
@dataclass(frozen=True, slots=True)
class Spot:
    """Where on the hosts a rank is: on host `node` of `nodes`, as `local_rank` of `local_size`.

    host: where the launcher tells no more than this rank's own place, which need not be in blocks:
    this host's name, and of the rest what blocks would have."""

    local_rank: int
    local_size: int
    node: int
    nodes: int
    host: str = ""


@final
@dataclass(frozen=True, slots=True)
class Launcher:
    """Which variable tells what. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are torchrun's.

    source: its name in messages. rank, size, local_rank, local_size: this process's place.
    node, nodes: this host's number, and how many hosts there are; without them hosts are taken to
    have equally many ranks, in order. job: what names the job, and its start, for its token.
    marks: other variables that must be there too, where these names are not its alone.
    spot: reads the place on the hosts where that takes more than names; it is given this row, the
    rank and the number of ranks. names: gives more words that name the job.
    first: gives rank 0's host; then MASTER_ADDR and MASTER_PORT may be left out, and the port
    comes from the job's name. It returns None where there is no telling.
    beside: a port on rank 0's host that the launcher holds for itself: where MASTER_ADDR and
    MASTER_PORT are not set, dream takes the two above it, on one host.
    by_hand: users set these variables themselves, and those of the place on the host can be left
    out where all ranks are on one. ours: the launcher serves the job's store. home: the user's
    home folder is on every host, as on a cluster, and can keep a secret.
    """

    source: str
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    job: tuple[str, ...] = ()
    node: str = ""
    nodes: str = ""
    marks: tuple[str, ...] = ()
    spot: Callable[[Launcher, Environ, int, int], Spot] | None = None
    names: Callable[[], tuple[str, ...]] | None = None
    first: Callable[[Environ], str | None] | None = None
    beside: str = ""
    by_hand: bool = False
    ours: bool = False
    home: bool = False

    def read(self, environ: Environ) -> Cluster | None:
        """Give the place; None where this launcher's variables are absent."""
        if self.ours and not environ.get(settings.RENDEZVOUS):
            return None
        if not all(environ.get(name) for name in self.marks):
            return None
        found = (self.rank, self.size) + (self.local_rank,) * self.by_hand
        if not any(environ.get(name) for name in found):
            return None
        require(environ, (self.rank, self.size), self.source, shown=found)
        rank = integer(environ, self.rank, self.source)
        world_size = integer(environ, self.size, self.source, minimum=1)
        alone = Cluster(self.source, rank, world_size=world_size)  # which checks the rank
        return alone if world_size == 1 else self._among_others(environ, alone)

    def started(self, environ: Environ) -> bool:
        """Whether this launcher has started several processes, of which this is one."""
        size = environ.get(self.size, "")
        return size.isdecimal() and int(size) > 1 and all(map(environ.get, self.marks))

    def _among_others(self, environ: Environ, alone: Cluster) -> Cluster:
        rank, world_size = alone.rank, alone.world_size
        if self.first is None:
            needed = (self.beside,) if self.beside else MASTER
            require(environ, (self.rank, self.size, *needed), self.source)
        if self.spot is None:
            spot = self._spot(environ, rank, world_size)
        else:
            spot = self.spot(self, environ, rank, world_size)
        master, store = self._services(environ, spot.nodes)
        hosts = environ.get(settings.HOSTS) if self.by_hand else None
        return replace(
            alone,
            local_rank=spot.local_rank,
            node_rank=spot.node,
            local_world_size=spot.local_size,
            hosts=tuple(hosts.split(",")) if hosts else names_of_hosts(master.host, spot.nodes),
            host=spot.host,
            master=master,
            rendezvous=store,
            token=self._token(environ, world_size, spot.nodes),
            serves_rendezvous=rank == 0 and not self.ours,
            workers=self._workers(environ, rank, world_size),
        )

    def _spot(self, environ: Environ, rank: int, world_size: int) -> Spot:
        local_rank, local_size = self._on_this_host(environ, rank, world_size)
        nodes = self._nodes(environ, world_size, local_size)
        return Spot(local_rank, local_size, self._node(environ, rank // local_size, nodes), nodes)

    def _on_this_host(self, environ: Environ, rank: int, world_size: int) -> tuple[int, int]:
        names = tuple(name for name in (self.local_rank, self.local_size) if name)
        if self.by_hand and is_loopback(environ[MASTER[0]]) and not any(map(environ.get, names)):
            return rank, world_size
        require(environ, (self.rank, self.size, *names), self.source)
        local_rank = integer(environ, self.local_rank, self.source)
        if self.local_size:
            return local_rank, integer(environ, self.local_size, self.source, 1)
        require(environ, (self.rank, self.size, *names, self.nodes), self.source)
        return local_rank, world_size // self._nodes(environ, world_size, 1)

    def _nodes(self, environ: Environ, world_size: int, local_size: int) -> int:
        if self.by_hand and environ.get(settings.HOSTS):
            return len(environ[settings.HOSTS].split(","))
        if environ.get(self.nodes):
            return integer(environ, self.nodes, self.source, 1)
        if local_size > world_size or world_size % local_size:
            raise ConfigurationError(
                f"Every host must start the same number of ranks. Received from {self.source}: "
                f"{self.size}={world_size}, {self.local_size}={local_size}. Start the same number "
                "on each host."
            )
        return world_size // local_size

    def _node(self, environ: Environ, node: int, nodes: int) -> int:
        if environ.get(self.node):
            node = integer(environ, self.node, self.source)
        if node >= nodes:
            raise ConfigurationError(
                f"The node rank must be below the number of hosts. Received from {self.source}: "
                f"node rank {node}, {nodes} hosts. Correct the launcher's environment."
            )
        return node

    def _services(self, environ: Environ, nodes: int) -> tuple[Endpoint, Endpoint]:
        """Choose where rank 0 serves torch's store and dream's."""
        if any(map(environ.get, MASTER)) or not (self.beside or self.first):
            require(environ, MASTER, self.source)
            master = Endpoint(environ[MASTER[0]], port(environ, MASTER[1], self.source))
            number = next_port(master.port)
        elif self.first is not None:
            host = LOOPBACK if nodes == 1 else self.first(environ)
            master = Endpoint(host or self._no_host(nodes), port_of(self._job(environ)))
            number = next_port(master.port)
        elif nodes > 1:
            self._no_host(nodes)
        else:
            number = next_port(port(environ, self.beside, self.source))
            master = Endpoint(LOOPBACK, next_port(number))
        if self.ours:
            return master, endpoint(environ[settings.RENDEZVOUS], settings.RENDEZVOUS)
        if environ.get(settings.RENDEZVOUS_PORT):
            number = port(environ, settings.RENDEZVOUS_PORT, self.source)
        return master, Endpoint(master.host, number)

    def _no_host(self, nodes: int) -> str:
        raise ConfigurationError(
            f"{self.source} does not say which host rank 0 runs on. Received: "
            f"{self.nodes or 'hosts'}={nodes}, MASTER_ADDR unset. Set MASTER_ADDR and MASTER_PORT "
            "on every rank."
        )

    def _job(self, environ: Environ) -> list[str]:
        """Return the words that name this job, and this start of it."""
        known = [environ.get(name, "") for name in self.job]
        words = [*known, *(self.names() if self.names else ())]
        if self.first is not None and not any(words):
            raise ConfigurationError(
                f"{self.source} does not name the job, so its ranks cannot agree on a port. "
                f"Received: none of {', '.join(self.job) or 'its names'}. Set MASTER_ADDR and "
                "MASTER_PORT on every rank."
            )
        return ["loopback" if is_loopback(word) else word for word in words]  # of several names

    def _token(self, environ: Environ, world_size: int, nodes: int) -> str:
        if self.ours:
            return checked(environ.get(settings.TOKEN, ""))
        told = self.first is not None and any(map(environ.get, MASTER))
        job = [environ[name] for name in MASTER] if told else self._job(environ)
        words = [self.source, *job, world_size]
        return token_of(environ, self.source, words, one_host=nodes == 1, at_home=self.home)

    def _workers(self, environ: Environ, rank: int, world_size: int) -> tuple[Endpoint, ...]:
        """Take TF_CONFIG's list where there is one; it must then tell the same place."""
        task = tf_config.parse(environ)
        if task is None:
            return ()
        if (task.index, len(task.workers)) != (rank, world_size):
            raise ConfigurationError(
                f"{self.source} and TF_CONFIG disagree about this process's rank. Received: "
                f"{self.rank}={rank} of {self.size}={world_size}, TF_CONFIG worker {task.index} of "
                f"{len(task.workers)}. Unset one of them."
            )
        return task.workers


def names_of_hosts(first: str, nodes: int) -> tuple[str, ...]:
    """Name the hosts, of which launchers tell how many there are, and the name of the first."""
    return (first, *(f"node{node}" for node in range(1, nodes)))
