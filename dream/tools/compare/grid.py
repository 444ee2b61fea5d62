"""Which rows the comparison has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from dream import _placing, _registry
from dream._errors import ConfigurationError
from dream._spec import FRAMEWORKS
from dream.launch.environment import cores
from dream.tools.compare.cells import SINGLE, Cell
from dream.tools.compare.kinds import KINDS, MIXED, check_framework
from dream.tools.compare.slow import Slow

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
        "parameter_server": _TWO,
    }
)
"""Strategies that are compared where none is named, and in which frameworks. Not among them: what
is `mirrored` by another name (`data_parallel` too on TensorFlow), and `hybrid`, which takes
four."""


def check(frameworks: Iterable[str], strategies: Iterable[str], n: int) -> None:
    """Refuse what no cell could be. frameworks, strategies: empty for those that are not known
    yet."""
    for framework in frameworks:
        check_framework(framework)
    if n < 1:
        raise ConfigurationError(
            f"There must be a replica. Received: n={n}. Give -n 2, or another number from 1 up."
        )
    for request in [*strategies] or ["mirrored"]:
        for backend in FRAMEWORKS:
            _placing.check_room(_placing.places(request, n, backend), cores())


def grid(frameworks: Iterable[str], strategies: Iterable[str], n: int) -> list[Cell]:
    """Every cell in the order it is run; `single` comes first in every framework, named or not,
    for it is what the others are held against."""
    given = list(dict.fromkeys(frameworks))
    asked = list(dict.fromkeys(strategies))
    check(given, asked, n)
    requests = [SINGLE, *(name for name in asked if name != SINGLE)]
    return [
        cell
        for framework in given
        for request in requests
        for cell in _cells(framework, request, n)
    ]


def offered(framework: str) -> list[str]:
    """What a framework is shown under where no strategy is named: what it has of DEFAULT."""
    backend = check_framework(framework).backends[0]
    return [
        request
        for request, among in DEFAULT.items()
        if framework in among and (backend, request.partition(":")[0]) in _registry.STRATEGIES
    ]


def scaled(
    frameworks: Sequence[str], strategies: Sequence[str], counts: Sequence[int]
) -> list[Cell]:
    """The grid at every count of replicas, framework by framework. strategies: empty for those
    that each is shown under."""
    return list(
        dict.fromkeys(
            cell
            for framework in frameworks
            for n in counts
            for cell in grid([framework], strategies or offered(framework), n)
        )
    )


def mixed(frameworks: Iterable[str], n: int) -> list[Cell]:
    """The rows of two frameworks on one ring, held against those of `frameworks`."""
    given = list(frameworks)
    if n < 2:
        raise ConfigurationError(
            f"Two frameworks need a rank each. Received: --mixed, n={n}. Give -n 2 or more."
        )
    cells = [Cell(name, "horovod", n) for name, kind in MIXED.items() if kind.oracle in given]
    if not cells:
        oracles = ", ".join(kind.oracle for kind in MIXED.values())
        raise ConfigurationError(
            "Rows of two frameworks are held against the single of their rank 0's. Received: "
            f"--mixed, frameworks={','.join(given)}. Add one of: {oracles}."
        )
    return cells


def slowed(cells: Iterable[Cell], slow: Slow) -> list[Cell]:
    """The rows once more whose replicas are processes, one of which is slow."""
    able = [cell for cell in cells if cell.trained > 1 and not cell.kind.mixed]
    found = [replace(cell, slow=slow) for cell in able if slow.rank < cell.trained]
    if not found:
        raise ConfigurationError(
            "No row has such a worker. Received: --slow "
            f"{slow.rank}:{slow.factor:g}, and no row whose replicas are {slow.rank + 1} processes "
            "or more. Name a lower rank, give a larger -n, or other strategies."
        )
    return found


def _cells(framework: str, request: str, n: int) -> list[Cell]:
    cells = [_cell(framework, request, n)]
    if framework == "tensorflow" and request == "mirrored" and n > 1:
        cells.append(_cell(framework, f"mirrored:devices={n}", n))
    return cells


def _cell(framework: str, request: str, n: int) -> Cell:
    found = _placing.places(request, n, KINDS[framework].backends[0])
    return Cell(framework, found.strategy, found.processes, found.devices, found.servers)
