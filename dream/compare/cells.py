"""Which rows the comparison has: framework x strategy x processes x devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from dream import _spec
from dream._errors import ConfigurationError, unknown
from dream._spec import Framework

Flavour = Literal["torch", "keras"]
"""Which of a task's two programs a framework runs."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A framework as the table names it.

    backend: what dream calls it, and KERAS_BACKEND; packages: what must be installed; install:
        what brings them.
    """

    backend: Framework
    flavour: Flavour
    packages: tuple[str, ...]
    install: str


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "torch": Kind("torch", "torch", ("torch",), "pip install 'dream-systems[torch]'"),
        "tensorflow": Kind(
            "tensorflow",
            "keras",
            ("tensorflow", "keras"),
            "pip install 'dream-systems[tensorflow]'",
        ),
        "keras-torch": Kind(
            "torch", "keras", ("torch", "keras"), "pip install 'dream-systems[torch]' keras"
        ),
    }
)
SINGLE = "single"


@dataclass(frozen=True, slots=True)
class Cell:
    """One row.

    framework: a key of KINDS; strategy: as `dream run --strategy` takes it, options included;
    devices: per process.
    """

    framework: str
    strategy: str
    processes: int
    devices: int = 1

    @property
    def kind(self) -> Kind:
        return KINDS[self.framework]

    @property
    def name(self) -> str:
        """The strategy without its options."""
        return self.strategy.partition(":")[0]

    @property
    def replicas(self) -> int:
        return self.processes * self.devices

    @property
    def title(self) -> str:
        """The strategy for people; where the replicas are is said when they share a process."""
        return f"{self.name} in 1 process" if self.devices > 1 else self.strategy

    @property
    def reduction(self) -> str:
        """Who adds the gradients up; empty where there is nothing to add."""
        if self.processes == 1:
            return "in process" if self.devices > 1 else ""
        asked = _spec.parse_request(self.strategy)[1].get("reduction", "auto")
        if asked != "auto":
            return str(asked)
        return _spec.find(self.name).reductions[self.kind.backend][0]

    def __str__(self) -> str:
        return f"{self.framework} {self.title} x {self.replicas}"


def grid(frameworks: Iterable[str], strategies: Iterable[str], n: int) -> list[Cell]:
    """Every cell in the order it is run; `single` comes first in every framework, named or not,
    for it is what the others are held against."""
    if n < 1:
        raise ConfigurationError(
            f"There must be a replica. Received: n={n}. Give -n 2, or another number from 1 up."
        )
    requests = [SINGLE, *(name for name in dict.fromkeys(strategies) if name != SINGLE)]
    return [
        cell
        for framework in dict.fromkeys(frameworks)
        for request in requests
        for cell in _cells(check_framework(framework), request, n)
    ]


def check_framework(name: str) -> str:
    if name not in KINDS:
        raise unknown("framework", name, KINDS)
    return name


def _cells(framework: str, request: str, n: int) -> list[Cell]:
    name, options = _spec.parse_request(request)
    devices = options.get("devices", 1)
    if name == SINGLE:
        return [Cell(framework, request, 1)]
    if isinstance(devices, int) and devices > 1:
        return [Cell(framework, request, 1, devices)]
    cells = [Cell(framework, request, n)]
    if framework == "tensorflow" and request == "mirrored" and n > 1:
        cells.append(Cell(framework, f"mirrored:devices={n}", 1, n))
    return cells


def split(text: str) -> list[str]:
    """The items of a comma-separated list. `name=value` goes with the item before it, for a
    strategy's own options are separated by commas too."""
    items: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if items and "=" in part and ":" not in part:
            items[-1] += f",{part}"
        elif part:
            items.append(part)
    return items
