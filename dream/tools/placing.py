"""Where a strategy's replicas, or the parts of its model, go: how many processes, and how many
devices in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dream._errors import ConfigurationError
from dream.strategies import spec as specs
from dream.strategies.spec import Framework

_IN_ONE_PROCESS = {("torch", "layers"), ("tensorflow", "layers"), ("tensorflow", "pipeline")}
"""Ways to split a model whose parts are devices of one process."""
CROWD = 32
"""Replicas for each core, at most: each takes some 300 MB, and they take turns."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A strategy on so many devices of this machine.

    strategy: as `dream run --strategy` takes it. processes: ranks of the job, the servers, which
    are the last ones and train nothing, among them. devices: per process.
    """

    strategy: str
    processes: int
    devices: int = 1
    servers: int = 0

    @property
    def name(self) -> str:
        """The strategy without its options."""
        return self.strategy.partition(":")[0]

    @property
    def trained(self) -> int:
        """The processes that train, the first ones."""
        return self.processes - self.servers

    @property
    def parts(self) -> int:
        """Replicas, or parts of a model, in all; in so many a batch may be summed."""
        return self.trained * self.devices

    def __str__(self) -> str:
        return self.strategy if self == PLAIN else f"{self.strategy} x {self.parts}"


SINGLE = Placement("single", 1)
PLAIN = Placement("the plain script", 1)
"""The script as if it had no block, which is no strategy."""


def place(request: str, n: int, framework: Framework) -> Placement:
    """The places of a strategy `NAME[:option=value,...]` on n replicas; a mesh that names both its
    axes says itself how many there are. Raises for what is no strategy or option."""
    name, given = specs.parse_request(request)
    spec = specs.find(name)
    if spec.update == "none":
        return Placement(request, 1)
    options = {"devices": 1} | dict(spec.resolve(_own(given))) | given
    axes = options.get("data"), options.get("model")
    if isinstance(axes[0], int) and isinstance(axes[1], int):
        n = axes[0] * axes[1]
    devices, servers = options["devices"], options.get("servers", 0)
    if isinstance(devices, int) and devices > 1:
        return Placement(request, 1, devices)
    if not spec.several or (framework, options.get("split")) in _IN_ONE_PROCESS:
        return Placement(f"{request}{',' if ':' in request else ':'}devices={n}", 1, n)
    if isinstance(servers, int) and servers:
        servers += options["engine"] == "tensorflow"  # the chief trains nothing, either
        workers = options["workers"] if isinstance(options["workers"], int) else n
        return Placement(request, workers + servers, 1, servers)
    return Placement(request, n)


def check_room(found: Placement, cores: int) -> None:
    """Refuse, of what is to run here, what would fill any machine of so many cores."""
    count, most = found.parts + found.servers, CROWD * cores
    if count > most:
        raise ConfigurationError(
            f"This many replicas would overload this machine. Received: {count} under "
            f"{found.strategy!r}, {cores} cores. Ask for at most {most}; dream plan predicts "
            "larger numbers."
        )


def owns_step(request: str) -> bool:
    """Whether a torch loop must leave the step, or the sums over ranks, to the strategy."""
    name, given = specs.parse_request(request)
    spec = specs.find(name)
    split = spec.resolve(_own(given)).get("split")
    return split == "pipeline" or spec.update == "asynchronous"


def asynchronous(request: str) -> bool:
    """Whether a strategy's replicas do not wait for one another."""
    name, given = specs.parse_request(request)
    spec = specs.find(name)
    return spec.update == "asynchronous" and spec.resolve(_own(given))["staleness"] != 0


def departs(request: str) -> str:
    """Why a strategy is not meant to learn exactly what one device does, and what would be; empty
    where it is."""
    name, given = specs.parse_request(request)
    spec = specs.find(name)
    options = spec.resolve(_own(given))
    if asynchronous(request):
        return "its workers do not wait for one another; with staleness=0 they do"
    every = options.get("every", 1)
    if every != 1:
        return f"its replicas are averaged every {every} steps only; with every=1 after each"
    return ""


def _own(given: Mapping[str, object]) -> Mapping[str, object]:
    """Without what every strategy takes."""
    return {name: value for name, value in given.items() if name not in specs.COMMON}
