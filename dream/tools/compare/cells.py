"""What a row of the comparison is: framework x strategy x processes x devices."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dream import _placing, _spec
from dream.tools.compare.kinds import KINDS, MIXED, Kind
from dream.tools.compare.slow import Slow

SINGLE = "single"


@dataclass(frozen=True, slots=True)
class Cell:
    """One row.

    framework: a key of KINDS or of MIXED; strategy: as `dream run --strategy` takes it, options
    included; devices: per process; servers: of the processes, the last ones, which train nothing.
    slow: the rank that is slow on purpose.
    """

    framework: str
    strategy: str
    processes: int
    devices: int = 1
    servers: int = 0
    slow: Slow | None = None

    @property
    def kind(self) -> Kind:
        return KINDS[self.framework] if self.framework in KINDS else MIXED[self.framework]

    @property
    def oracle(self) -> str:
        """The framework whose `single` the row is held against."""
        return self.kind.oracle or self.framework

    @property
    def name(self) -> str:
        """The strategy without its options."""
        return self.strategy.partition(":")[0]

    @property
    def replicas(self) -> int:
        """Or parts of a model."""
        return self.trained * self.devices

    @property
    def trained(self) -> int:
        """The processes that train, the first ones."""
        return self.processes - self.servers

    @property
    def splits(self) -> bool:
        """Whether the model is split, so that there are fewer replicas than places."""
        return "model" in _spec.find(self.name).mesh

    @property
    def title(self) -> str:
        """The strategy for people; where the replicas are is said when they share a process."""
        if self.devices == 1:
            return f"{self.strategy}, {self.slow}" if self.slow else self.strategy
        plain = re.sub(rf"[:,]devices={self.devices}$", "", self.strategy)
        return f"{plain} in 1 process"

    @property
    def waits(self) -> bool:
        """Whether its replicas wait for one another."""
        return not _placing.asynchronous(self.strategy)

    @property
    def reduction(self) -> str:
        """Who is to add the gradients up; empty where there is nothing to add."""
        if self.processes == 1:
            return "in process" if self.devices > 1 else ""
        asked = _spec.parse_request(self.strategy)[1].get("reduction", "auto")
        if asked != "auto":
            return str(asked)
        if self.servers:
            return "servers"
        choices = _spec.find(self.name).reductions[self.kind.backends[0]]
        return choices[0] if len(choices) == 1 else "auto"

    def __str__(self) -> str:
        return f"{self.framework} {self.title} x {self.replicas}"
