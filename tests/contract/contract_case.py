"""What a case is, and what it runs in. A case returns figures; the tests judge them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from contract_cells import Cell

import dream

Mode = Literal["plain", "single", "cell"]
Figures = dict[str, Any]
NO_KNOBS: Mapping[str, Any] = {}
EVERYWHERE: tuple[Mode, ...] = ("plain", "single", "cell")
WITH_DREAM: tuple[Mode, ...] = ("single", "cell")


LAST: list[dream.Strategy] = []
"""The strategy that was made last."""


@dataclass(frozen=True, slots=True)
class Env:
    """Where a case runs.

    mode: without dream at all, under `single`, or under the cell's strategy.
    folder: the job's own, the same for all its ranks.
    """

    mode: Mode
    cell: Cell
    rank: int
    folder: Path

    @property
    def ranks(self) -> int:
        return self.cell.processes if self.mode == "cell" else 1

    @property
    def replicas(self) -> int:
        return self.cell.replicas if self.mode == "cell" else 1

    @property
    def shares(self) -> int:
        """How many shares of a batch the ranks take: one process has them all in its own."""
        return min(self.replicas, self.ranks)

    @property
    def turn(self) -> int:
        """Which of the replicas this rank is of, or a part of: whose share of a batch it takes."""
        return self.rank * self.replicas // self.ranks if self.mode == "cell" else 0

    @property
    def last(self) -> bool:
        """Whether this is the last rank, which is where faults are put."""
        return self.rank == self.ranks - 1

    @contextmanager
    def block(
        self, *, seed: int | None = None, knobs: Mapping[str, Any] = NO_KNOBS, **options: Any
    ) -> Iterator[Any]:
        """The `with` of the mode; yields the strategy, or None where dream is not used. knobs:
        options that one device takes too."""
        if self.mode == "plain":
            yield None
            return
        with self.strategy(seed=seed, knobs=knobs, **options) as strategy:
            yield strategy

    def strategy(
        self, *, seed: int | None = None, knobs: Mapping[str, Any] = NO_KNOBS, **options: Any
    ) -> dream.Strategy:
        """The cell's strategy, not entered."""
        name, cell = self.cell.strategy, self.cell
        if self.mode == "single":
            name, options = "single", {}
        elif cell.reduction != "auto":
            options["reduction"] = cell.reduction
        if self.mode == "cell":
            options |= cell.request
        if self.mode == "cell" and cell.devices is not None:
            options.setdefault("devices", cell.devices)
        options |= knobs
        LAST[:] = [dream.strategy(name, framework=cell.framework, seed=seed, **options)]
        return LAST[0]


@dataclass(frozen=True, slots=True)
class Case:
    """A named piece of training.

    modes: where it has a meaning. ends_job: the ranks cannot go on after it, so it comes last.
    """

    name: str
    run: Callable[[Env], Figures]
    modes: tuple[Mode, ...]
    ends_job: bool = False


class Cases:
    """The cases of one kind of cell, in the order they were written."""

    def __init__(self) -> None:
        self._cases: dict[str, Case] = {}

    def add(
        self, *modes: Mode, ends_job: bool = False
    ) -> Callable[[Callable[[Env], Figures]], Callable[[Env], Figures]]:
        """Decorator: a function becomes a case of its own name in the modes given."""

        def keep(run: Callable[[Env], Figures]) -> Callable[[Env], Figures]:
            name = run.__name__
            assert name not in self._cases, name
            self._cases[name] = Case(name, run, modes, ends_job)
            return run

        return keep

    def named(self, name: str) -> Case:
        return self._cases[name]

    def of(self, mode: Mode) -> list[Case]:
        """The cases of a mode; those that end the job last."""
        chosen = [case for case in self._cases.values() if mode in case.modes]
        return sorted(chosen, key=lambda case: case.ends_job)


def refusal(act: Callable[[], object]) -> Figures:
    """What `act` raised: its types by name, and its message; no types if it raised nothing."""
    try:
        act()
    except Exception as error:
        return {"types": [kind.__name__ for kind in type(error).__mro__], "message": str(error)}
    return {"types": [], "message": "nothing was raised"}
