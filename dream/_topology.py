"""Frozen facts: where this process stands among the ranks, and what it computes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from dream._errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address that a rank listens on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where this process stands, as its launcher told it. No framework was asked.

    source: the launcher, for messages ("dream run", "torchrun", "TF_CONFIG", "nothing").
    master: where rank 0 serves torch's store; None when alone.
    rendezvous: where the job's key-value store is; None when alone.
    token: the word that a client of the rendezvous must know; never shown.
    serves_rendezvous: whether this process has to serve that store itself (rank 0 under a
        launcher that is not ours).
    workers: every rank's own endpoint in rank order, for TensorFlow's gRPC; empty where the
        launcher gave none (they are then exchanged over the rendezvous).
    hosts: one name per node, in node order.
    servers: how many ranks, the last ones, the launcher names parameter servers; None where it
        names no roles.
    """

    source: str = "nothing"
    rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    hosts: tuple[str, ...] = ("localhost",)
    master: Endpoint | None = None
    rendezvous: Endpoint | None = None
    token: str = field(default="", repr=False)
    serves_rendezvous: bool = False
    workers: tuple[Endpoint, ...] = ()
    servers: int | None = None

    def __post_init__(self) -> None:
        _check_rank("rank", self.rank, "world size", self.world_size, self.source)
        _check_rank(
            "local rank", self.local_rank, "local world size", self.local_world_size, self.source
        )
        if self.workers and len(self.workers) != self.world_size:
            raise ConfigurationError(
                f"The cluster names another number of workers than ranks. Received from "
                f"{self.source}: {len(self.workers)} workers, world size {self.world_size}. "
                "Give every rank the same list."
            )

    @property
    def alone(self) -> bool:
        return self.world_size == 1

    @property
    def one_host(self) -> bool:
        return len(self.hosts) == 1


def _check_rank(what: str, rank: int, of: str, size: int, source: str) -> None:
    if size < 1 or not 0 <= rank < size:
        raise ConfigurationError(
            f"The {what} must be at least 0 and below the {of}. Received from {source}: "
            f"{what} {rank}, {of} {size}. Correct the launcher's environment."
        )


@dataclass(frozen=True, slots=True)
class Topology:
    """What `Strategy.topology` shows.

    num_replicas: copies of the model that share a global batch; equals world_size, save where
        one process drives several devices.
    device: what this rank computes on, in the framework's own spelling ("cpu", "cuda:0").
    """

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    local_world_size: int
    num_replicas: int
    device: str
    hosts: tuple[str, ...]

    @classmethod
    def of(cls, cluster: Cluster, *, num_replicas: int, device: str) -> Topology:
        return cls(
            rank=cluster.rank,
            local_rank=cluster.local_rank,
            node_rank=cluster.node_rank,
            world_size=cluster.world_size,
            local_world_size=cluster.local_world_size,
            num_replicas=num_replicas,
            device=device,
            hosts=cluster.hosts,
        )
