"""Replicas that have drifted apart: when to look for them, and how to name what differs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import final

from dream._errors import Desynchronized

_PART = 200
"""A comparison takes at most this part of the steps between two: 0.5 %."""


@final
class Pace:
    """Says when to compare: at the first step, the second, the fourth, and so on until comparisons
    cost as little as they are to. Alike on every rank that is told the same."""

    def __init__(self) -> None:
        self._left = self._last = 1
        self._began = time.perf_counter()

    def due(self) -> bool:
        """Count a step that is about to be taken; whether to compare before it."""
        self._left -= 1
        return self._left <= 0

    def step_seconds(self) -> float:
        """How long a step has taken since the last comparison."""
        return (time.perf_counter() - self._began) / max(1, self._last - self._left)

    def compared(self, cost: float, step: float) -> None:
        """Begin to count to the next one.

        cost, step: the seconds of a comparison and of a step, the same numbers on every rank.
        """
        most = int(_PART * cost / max(step, 1e-9))
        self._left = self._last = max(1, min(2 * self._last, most))
        self._began = time.perf_counter()


def differing(said: Sequence[Mapping[str, object]]) -> list[tuple[str, list[int]]]:
    """Name what is not alike, in rank 0's order, each with the ranks that are unlike rank 0.

    said: of each rank, what it has by name.
    """
    found = []
    for name, first in said[0].items():
        ranks = [rank for rank, own in enumerate(said) if own.get(name) != first]
        if ranks:
            found.append((name, ranks))
    return found


def by_rank(values: Sequence[object]) -> str:
    """Say what each rank has. values: in rank order."""
    return ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))


def other_hyperparameters(name: str, where: str, values: Sequence[object]) -> Desynchronized:
    """Make the error of optimizers that differ. values: each rank's, in rank order."""
    return Desynchronized(
        f"The ranks' optimizers differ, so the replicas would drift apart. Received: {name} of "
        f"{where}, {by_rank(values)}. Compute it from values that are equal on all ranks, such as "
        "a loss after its backward, or use strategy.communicator.all_reduce."
    )


def other_steps(optimizer: str, values: Sequence[object]) -> Desynchronized:
    """Make the error of ranks that have left out steps. values: each rank's, in rank order."""
    return Desynchronized(
        f"The ranks have taken different numbers of steps, so the replicas have drifted apart. "
        f"Received: of {optimizer}, step {by_rank(values)}. Where a step is left out by a number, "
        "as len(x) or a loss before its backward, let that be the whole batch's, by "
        "strategy.communicator.all_reduce."
    )


def drifted(
    found: Sequence[tuple[str, list[int]]], parameters: int, where: str = "rank"
) -> Desynchronized:
    """Make the error of replicas whose parameters differ.

    found: those that do, as `differing` names them. parameters: how many there are. where: what a
    replica is on.
    """
    name, ranks = found[0]
    return Desynchronized(
        f"The replicas have drifted apart: a parameter is not the same on every {where}. Received: "
        f"{name}, {where}{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} unlike {where} 0, "
        f"{len(found)} of {parameters} parameters. Whatever changes it must do the same on every "
        f"{where}."
    )
