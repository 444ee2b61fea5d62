"""The rows of a comparison: framework x strategy x processes x devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from dream._errors import ConfigurationError, unknown
from dream.launch.joined.threads import cores
from dream.strategies import registry
from dream.strategies import spec as specs
from dream.strategies.spec import FRAMEWORKS, Framework
from dream.tools import placing
from dream.tools.compare.settings import Slow
from dream.tools.placing import Placement, place

Flavour = Literal["torch", "keras", "step"]
"""Which of a task's programs a rank runs: a loop of torch's, Keras's fit, TensorFlow's steps."""


@dataclass(frozen=True, slots=True)
class RankKind:
    """A framework and program that ranks of a row run. backend: what dream calls it, and
    KERAS_BACKEND."""

    backend: Framework
    flavour: Flavour


@dataclass(frozen=True, slots=True)
class FrameworkKind:
    """A framework as the table names it, or two on one ring.

    sides: dealt out by rank; packages: what must be installed; install: what brings them.
    oracle: the framework whose `single` it is held against; empty for its own.
    """

    sides: tuple[RankKind, ...]
    packages: tuple[str, ...]
    install: str
    oracle: str = ""

    @property
    def backends(self) -> tuple[Framework, ...]:
        return tuple(side.backend for side in self.sides)

    @property
    def mixed(self) -> bool:
        return len(self.sides) > 1


_TORCH, _KERAS_TORCH = RankKind("torch", "torch"), RankKind("torch", "keras")
_TENSORFLOW, _STEP = RankKind("tensorflow", "keras"), RankKind("tensorflow", "step")
_BOTH = ("torch", "tensorflow", "keras")
_BOTH_BY = "pip install 'dream-systems[torch,tensorflow]'"

KINDS: Mapping[str, FrameworkKind] = MappingProxyType(
    {
        "torch": FrameworkKind((_TORCH,), ("torch",), "pip install 'dream-systems[torch]'"),
        "tensorflow": FrameworkKind(
            (_TENSORFLOW,), ("tensorflow", "keras"), "pip install 'dream-systems[tensorflow]'"
        ),
        "keras-torch": FrameworkKind(
            (_KERAS_TORCH,), ("torch", "keras"), "pip install 'dream-systems[torch]' keras"
        ),
    }
)

MIXED: Mapping[str, FrameworkKind] = MappingProxyType(
    {
        "torch+tensorflow": FrameworkKind((_TORCH, _STEP), _BOTH, _BOTH_BY, oracle="torch"),
        "keras-torch+tensorflow": FrameworkKind(
            (_KERAS_TORCH, _TENSORFLOW), _BOTH, _BOTH_BY, oracle="keras-torch"
        ),
    }
)
"""What `--mixed` adds."""


def check_framework(name: str) -> FrameworkKind:
    if name not in KINDS:
        raise unknown("framework", name, KINDS)
    return KINDS[name]


SINGLE = "single"


@dataclass(frozen=True, slots=True)
class Cell:
    """A row of a comparison.

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
    def kind(self) -> FrameworkKind:
        return KINDS[self.framework] if self.framework in KINDS else MIXED[self.framework]

    @property
    def placement(self) -> Placement:
        """As `dream verify` places it."""
        return Placement(self.strategy, self.processes, self.devices, self.servers)

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
        return "model" in specs.find(self.name).mesh

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
        return not placing.asynchronous(self.strategy)

    @property
    def reduction(self) -> str:
        """Who is to add the gradients up; empty where there is nothing to add."""
        if self.processes == 1:
            return "in process" if self.devices > 1 else ""
        asked = specs.parse_request(self.strategy)[1].get("reduction", "auto")
        if asked != "auto":
            return str(asked)
        if self.servers:
            return "servers"
        choices = specs.find(self.name).reductions[self.kind.backends[0]]
        return choices[0] if len(choices) == 1 else "auto"

    def __str__(self) -> str:
        return f"{self.framework} {self.title} x {self.replicas}"


_ALL, _TWO = ("torch", "tensorflow", "keras-torch"), ("torch", "tensorflow")

DEFAULT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mirrored": _ALL,
        "horovod": _ALL,
        "data_parallel": ("torch",),
        "sharded": _TWO,
        "model_parallel:split=tensor": _TWO,
        "model_parallel:split=pipeline": _TWO,
        "local_sgd": _TWO,
        "parameter_server:staleness=4": _TWO,
    }
)
"""Strategies that are compared where none is named, and in which frameworks. Not among them: what
is `mirrored` by another name (`data_parallel` too on TensorFlow), and `hybrid`, which takes
four. Workers that a busy machine keeps far apart may not learn at all: these have a bound."""


def check_cells(frameworks: Iterable[str], strategies: Iterable[str], n: int) -> None:
    """Refuse what no cell could be. frameworks, strategies: empty for those that are not known
    yet."""
    for framework in frameworks:
        check_framework(framework)
    if n < 1:
        raise ConfigurationError(
            f"There must be at least one replica. Received: n={n}. Pass -n 2, or another number "
            "from 1 up."
        )
    for request in [*strategies] or ["mirrored"]:
        for backend in FRAMEWORKS:
            placing.check_room(place(request, n, backend), cores())


def grid(frameworks: Iterable[str], strategies: Iterable[str], n: int) -> list[Cell]:
    """Return every cell in the order it is run; `single` comes first in every framework, named or
    not, for it is what the others are held against."""
    given = list(dict.fromkeys(frameworks))
    asked = list(dict.fromkeys(strategies))
    check_cells(given, asked, n)
    requests = [SINGLE, *(name for name in asked if name != SINGLE)]
    return [
        cell
        for framework in given
        for request in requests
        for cell in _cells_of(framework, request, n)
    ]


def offered(framework: str) -> list[str]:
    """Return what a framework is shown under where no strategy is named: what it has of DEFAULT."""
    backend = check_framework(framework).backends[0]
    return [
        request
        for request, among in DEFAULT.items()
        if framework in among and (backend, request.partition(":")[0]) in registry.STRATEGIES
    ]


def scaled(
    frameworks: Sequence[str], strategies: Sequence[str], counts: Sequence[int]
) -> list[Cell]:
    """Return the grid at every count of replicas, framework by framework. strategies: empty for
    those that each is shown under."""
    return list(
        dict.fromkeys(
            cell
            for framework in frameworks
            for n in counts
            for cell in grid([framework], strategies or offered(framework), n)
        )
    )


def mixed_cells(frameworks: Iterable[str], n: int) -> list[Cell]:
    """Return the rows of two frameworks on one ring, held against those of `frameworks`."""
    given = list(frameworks)
    if n < 2:
        raise ConfigurationError(
            f"A job of two frameworks needs at least one rank for each. Received: --mixed, n={n}. "
            "Pass -n 2 or more."
        )
    cells = [Cell(name, "horovod", n) for name, kind in MIXED.items() if kind.oracle in given]
    if not cells:
        oracles = ", ".join(kind.oracle for kind in MIXED.values())
        raise ConfigurationError(
            "Rows with two frameworks are compared with single in their rank 0's framework. "
            f"Received: --mixed, frameworks={','.join(given)}. Add one of: {oracles}."
        )
    return cells


def slowed(cells: Iterable[Cell], slow: Slow) -> list[Cell]:
    """Return the rows once more whose replicas are processes, one of which is slow."""
    able = [cell for cell in cells if cell.trained > 1 and not cell.kind.mixed]
    found = [replace(cell, slow=slow) for cell in able if slow.rank < cell.trained]
    if not found:
        raise ConfigurationError(
            f"No row has this worker. Received: --slow {slow.rank}:{slow.factor:g}, and no row "
            f"whose replicas are {slow.rank + 1} processes or more. Name a lower rank, give a "
            "larger -n, or other strategies."
        )
    return found


def _cells_of(framework: str, request: str, n: int) -> list[Cell]:
    cells = [_cell(framework, request, n)]
    if framework == "tensorflow" and request == "mirrored" and n > 1:
        cells.append(_cell(framework, f"mirrored:devices={n}", n))
    return cells


def _cell(framework: str, request: str, n: int) -> Cell:
    found = place(request, n, KINDS[framework].backends[0])
    return Cell(framework, found.strategy, found.processes, found.devices, found.servers)
