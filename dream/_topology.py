"""Frozen facts: where this process stands among the ranks, and what it computes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from dream._errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address that a rank listens on."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host  # of IPv6
        return f"{host}:{self.port}"


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
    layout: every rank's node; empty where ranks lie over the nodes in blocks, equally many on each.
    host: this node's name, where the launcher tells of the others' places nothing: `detect` then
        asks the ranks; empty where that is done, or not needed.
    servers: how many ranks, the last ones, the launcher names parameter servers; None where it
        names no roles.
    evaluator: whether the launcher has this process stand beside the job, and evaluate what that
        trains; it is alone then.
    """

    source: str = "nothing"
    rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    hosts: tuple[str, ...] = ("localhost",)
    layout: tuple[int, ...] = ()
    host: str = ""
    master: Endpoint | None = None
    rendezvous: Endpoint | None = None
    token: str = field(default="", repr=False)
    serves_rendezvous: bool = False
    workers: tuple[Endpoint, ...] = ()
    servers: int | None = None
    evaluator: bool = False

    def __post_init__(self) -> None:
        _check_rank("rank", self.rank, "world size", self.world_size, self.source)
        _check_rank(
            "local rank", self.local_rank, "local world size", self.local_world_size, self.source
        )
        if self.workers and len(self.workers) != self.world_size:
            raise ConfigurationError(
                "The cluster lists a different number of workers than there are ranks. Received "
                f"from {self.source}: {len(self.workers)} workers, world size {self.world_size}. "
                "Give every rank the same list."
            )

    @property
    def alone(self) -> bool:
        return self.world_size == 1

    @property
    def one_host(self) -> bool:
        return len(self.hosts) == 1

    def node_of(self, rank: int) -> int:
        """Which node a rank is on."""
        return self.layout[rank] if self.layout else rank // self.local_world_size

    def ranks_on(self, node: int) -> tuple[int, ...]:
        """The ranks of a node."""
        if self.layout:
            return tuple(rank for rank, on in enumerate(self.layout) if on == node)
        first = node * self.local_world_size
        return tuple(range(first, min(first + self.local_world_size, self.world_size)))


def own_gpu(place: Cluster, visible: int) -> int:
    """Return which of the GPUs that this rank sees is its own: the only one, as where its launcher
    shows each rank its own, or that of its local rank. ConfigurationError where there are several,
    and fewer than ranks on this host. visible: how many it sees, at least 1."""
    return own_gpus(place, visible, 1)


def own_gpus(place: Cluster, visible: int, count: int) -> int:
    """Return the first of the GPUs that are this rank's own, so many in a row."""
    if visible == count:
        return 0
    if visible >= place.local_world_size * count:
        return place.local_rank * count
    each = "a GPU" if count == 1 else f"{count} GPUs"
    raise ConfigurationError(
        f"Every rank needs {each} of its own. Received: {visible} GPUs for "
        f"{place.local_world_size} ranks on this host, of which this is local rank "
        f"{place.local_rank}. Start {max(1, visible // count)} ranks, or give each its own with "
        "CUDA_VISIBLE_DEVICES (empty: none, the CPU)."
    )


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
    role: "chief" or "evaluator", where ranks do not all run the script alike; else empty.
    """

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    local_world_size: int
    num_replicas: int
    device: str
    hosts: tuple[str, ...]
    role: str = ""

    @classmethod
    def of(cls, cluster: Cluster, *, num_replicas: int, device: str, role: str = "") -> Topology:
        return cls(
            rank=cluster.rank,
            local_rank=cluster.local_rank,
            node_rank=cluster.node_rank,
            world_size=cluster.world_size,
            local_world_size=cluster.local_world_size,
            num_replicas=num_replicas,
            device=device,
            hosts=cluster.hosts,
            role=role,
        )


@dataclass(frozen=True, slots=True)
class Mesh:
    """data copies of the model, each in `model` parts."""

    data: int
    model: int

    @property
    def size(self) -> int:
        return self.data * self.model

    def data_index(self, rank: int) -> int:
        """Which copy of the model the rank is a part of: whose share of a batch it works on."""
        return rank // self.model

    def model_index(self, rank: int) -> int:
        """Which part of its copy the rank holds."""
        return rank % self.model

    def copy_of(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold the parts of the rank's copy: its neighbours on the model axis."""
        first = self.data_index(rank) * self.model
        return tuple(range(first, first + self.model))

    def twins_of(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold the same part in every copy: its neighbours on the data axis."""
        return tuple(range(self.model_index(rank), self.size, self.model))

    @classmethod
    def fit(cls, replicas: int, *, data: int | None, model: int | None, spare: str) -> Self:
        """The mesh of `replicas` ranks or devices. An axis that is not given takes what the other
        leaves; where neither is, `spare` ("data" or "model") takes all."""
        if data is None and model is None:
            data, model = (replicas, 1) if spare == "data" else (1, replicas)
        elif data is None:
            assert model is not None
            data = max(1, replicas // model)
        elif model is None:
            model = max(1, replicas // data)
        if data * model != replicas:
            raise ConfigurationError(
                f"The mesh axes must multiply to the number of replicas. Received: data {data} x "
                f"model {model} = {data * model}, replicas {replicas}. Start {data * model} ranks "
                f"(dream run -n {data * model}), or choose axes whose product is {replicas}."
            )
        return cls(data, model)
