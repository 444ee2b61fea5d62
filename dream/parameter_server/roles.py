"""Who is what: the first ranks work, the last ones serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from dream._errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Roles:
    """Ranks 0 to workers - 1 work, the rest serve; the first server coordinates too."""

    workers: int
    servers: int

    @classmethod
    def fit(
        cls, world_size: int, workers: int | None, servers: int, *, named: int | None = None
    ) -> Self:
        """The roles of a job. workers: None takes what the servers leave; named: how many ranks
        the launcher names servers, None where it names no roles."""
        if named not in (None, servers):
            raise ConfigurationError(
                "The cluster names another number of servers than the strategy. Received: "
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
        return f"{_named(self.working)} work, {_named(self.serving)} serve"


def _named(ranks: range) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
