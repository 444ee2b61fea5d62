"""The job: who works, who serves, and by what rules."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from dream import cluster
from dream._errors import ConfigurationError, Unsupported
from dream._topology import Cluster


@dataclass(frozen=True, slots=True)
class Roles:
    """Ranks 0 to workers - 1 work, the rest serve; the first server coordinates too."""

    workers: int
    servers: int

    @classmethod
    def fit(
        cls, world_size: int, workers: int | None, servers: int, *, named: int | None = None
    ) -> Self:
        """Share the ranks out. workers: None takes what the servers leave; named: how many ranks
        the launcher names servers, None where it names no roles."""
        if named not in (None, servers):
            raise ConfigurationError(
                "The cluster and the strategy disagree on the number of servers. Received: "
                f"servers={servers}, and {named} of {world_size} tasks are servers. Write "
                f"servers={named}."
            )
        if workers is None:
            workers = max(1, world_size - servers)
        if workers + servers != world_size:
            raise ConfigurationError(
                f"{workers} worker{'s' * (workers > 1)} and {servers} server{'s' * (servers > 1)} "
                f"are {workers + servers} ranks. Received: {world_size} "
                f"rank{'s' * (world_size > 1)}. Start them with "
                f"`dream run -n {workers + servers} SCRIPT`."
            )
        return cls(workers, servers)

    @property
    def working(self) -> range:
        return range(self.workers)

    @property
    def serving(self) -> range:
        return range(self.workers, self.workers + self.servers)

    @property
    def coordinator(self) -> int:
        return self.workers

    def serves(self, rank: int) -> bool:
        return rank >= self.workers

    def __str__(self) -> str:
        works, serves = "s" * (self.workers == 1), "s" * (self.servers == 1)
        return f"{listed(self.working)} work{works}, {listed(self.serving)} serve{serves}"


@dataclass(frozen=True, slots=True)
class ServerJob:
    """The job as one of its ranks sees it. bound: the `staleness=` option; every: updates between
    snapshots; folder: where they go."""

    place: Cluster
    roles: Roles
    bound: int | None
    every: int | None = None
    folder: Path | None = None

    @classmethod
    def of(cls, place: Cluster, options: Mapping[str, object]) -> Self:
        """Read the strategy's options."""
        workers, servers = options["workers"], options["servers"]
        bound, every = options["staleness"], options["snapshot_every"]
        assert workers is None or isinstance(workers, int)
        assert isinstance(servers, int)
        assert bound is None or isinstance(bound, int)
        assert every is None or isinstance(every, int)
        roles = Roles.fit(place.world_size, workers, servers, named=place.servers)
        folder = cluster.snapshot_folder()
        if every is not None and folder is None:
            raise ConfigurationError(
                "Snapshots need `dream run`, which restarts the job from them. Received: "
                f"snapshot_every={every} under {place.source}. Start it with `dream run "
                "--max-restarts 1`, or remove snapshot_every."
            )
        return cls(place, roles, bound, every, folder)

    @property
    def serves(self) -> bool:
        """Whether this rank is a server."""
        return self.roles.serves(self.place.rank)

    @property
    def in_step(self) -> bool:
        """Whether one update is made of each global batch."""
        return self.bound == 0

    @property
    def parts(self) -> int:
        """In how many parts, one a worker, a batch is dealt."""
        return self.roles.workers if self.in_step else 1


def end_process() -> NoReturn:
    """End this process well, and nothing of the script after it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def refuse_communicator() -> NoReturn:
    raise Unsupported(
        "Workers of 'parameter_server' run asynchronously, so they have no collective operations. "
        "Received: strategy.communicator. Use strategy.staleness() for statistics of the job, or a "
        "synchronous strategy."
    )


def refuse_weigh(count: object) -> NoReturn:
    raise Unsupported(
        "Under 'parameter_server' the loss weight is set in the train step. Received: weigh(loss, "
        f"count={count!r}). Use strategy.train_step(model, loss, optimizer, weight=...)."
    )


def refuse_before_block() -> NoReturn:
    raise ConfigurationError(
        "The strategy block has not been entered yet. Received: a call before `with "
        "dream.strategy(...)`. Call it inside the block or after it."
    )


def listed(ranks: range) -> str:
    """Name ranks, one or more."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
