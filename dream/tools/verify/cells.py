"""Which strategies a script is held under, and in how many processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dream import _here, _placing, _spec
from dream._errors import ConfigurationError
from dream._spec import FRAMEWORKS, Framework
from dream.launch.environment import cores

SINGLE_NAME = "single"


@dataclass(frozen=True, slots=True)
class Cell:
    """strategy: as `dream run --strategy` takes it; devices: per process; servers: of the
    processes, the last ones, which train nothing."""

    strategy: str
    processes: int
    devices: int = 1
    servers: int = 0

    @property
    def name(self) -> str:
        """The strategy without its options."""
        return self.strategy.partition(":")[0]

    @property
    def parts(self) -> int:
        """In how many parts a batch may be summed."""
        return self.trained * self.devices

    @property
    def trained(self) -> int:
        """The processes that train, the first ones."""
        return self.processes - self.servers

    def __str__(self) -> str:
        return f"{self.strategy} x {self.parts}"


SINGLE = Cell(SINGLE_NAME, 1)


def check(requests: Sequence[str], n: int) -> None:
    """Refuse what is no strategy, and what would be single. Raises ConfigurationError."""
    for request in requests:
        for framework in FRAMEWORKS:
            _placing.check_room(_placing.places(request, n, framework), cores())
        cells = [_cell(request, n, framework) for framework in FRAMEWORKS]
        if all(cell.name != SINGLE_NAME and cell.parts < 2 for cell in cells):
            raise ConfigurationError(
                f"One replica is single. Received: --strategy {request}, -n {n}. Give -n 2 or more."
            )


def chosen(requests: Sequence[str], framework: Framework, n: int) -> list[Cell]:
    """The cells of strategies as they were asked for; where none was, of what is worth holding a
    script under."""
    names = list(requests) or ["mirrored"]
    if not requests and _here.horovod_status().serves(framework):
        names.append("horovod")
    cells = [_cell(name, n, framework) for name in names]
    return [cell for cell in cells if cell.name != SINGLE_NAME]


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


def _cell(request: str, n: int, framework: Framework) -> Cell:
    found = _placing.places(request, n, framework)
    return Cell(found.strategy, found.processes, found.devices, found.servers)
