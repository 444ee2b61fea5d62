"""Which strategies a script is held under, and in how many processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dream import _here, _spec
from dream._errors import ConfigurationError
from dream._spec import FRAMEWORKS, Framework

SINGLE_NAME = "single"


@dataclass(frozen=True, slots=True)
class Cell:
    """strategy: as `dream run --strategy` takes it; devices: per process."""

    strategy: str
    processes: int
    devices: int = 1

    @property
    def name(self) -> str:
        """The strategy without its options."""
        return self.strategy.partition(":")[0]

    @property
    def parts(self) -> int:
        """In how many parts a batch may be summed."""
        return self.processes * self.devices

    def __str__(self) -> str:
        return f"{self.strategy} x {self.parts}"


SINGLE = Cell(SINGLE_NAME, 1)


def named(requests: Sequence[str], n: int) -> list[Cell]:
    """The cells of strategies as they were asked for. Raises ConfigurationError."""
    return [_cell(request, n) for request in requests if _checked(request) != SINGLE_NAME]


def sensible(framework: Framework, n: int) -> list[Cell]:
    """What is worth holding a script under where nothing was asked for."""
    cells = [_cell("mirrored", n)]
    if _here.horovod_status().serves(framework):
        cells.append(_cell("horovod", n))
    return cells


def obstacle(cell: Cell, framework: Framework) -> str:
    """Why the script's framework cannot run it here; empty where it can."""
    spec = _spec.find(cell.name)
    reduction = str(_spec.parse_request(cell.strategy)[1].get("reduction", "auto"))
    if reduction not in ("auto", *spec.reductions[framework]):
        return f"{framework} has no reduction={reduction!r} under {cell.name!r}"
    found = _here.obstacle(spec, framework, reduction)
    return f"{framework} has no {cell.name!r}" if found == "not in this framework" else found


def framework_of(name: str) -> Framework:
    return next(framework for framework in FRAMEWORKS if framework == name)


def _checked(request: str) -> str:
    name, _ = _spec.parse_request(request)
    return name


def _cell(request: str, n: int) -> Cell:
    name, options = _spec.parse_request(request)
    devices = options.get("devices", 1)
    if isinstance(devices, int) and devices > 1:
        return Cell(request, 1, devices)
    if not _spec.find(name).several:
        return Cell(f"{request}{',' if ':' in request else ':'}devices={n}", 1, n)
    if n < 2:
        raise ConfigurationError(
            f"One replica is single. Received: --strategy {request}, -n {n}. Give -n 2 or more."
        )
    return Cell(request, n)
