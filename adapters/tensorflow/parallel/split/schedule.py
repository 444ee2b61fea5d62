"""In which order the parts of a model run their microbatches: arithmetic, no framework.

The order of each device is found by playing the schedule through, a unit of time a task, so it
can always be run: no device waits for what comes later on another that waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

Kind = Literal["gpipe", "1f1b", "interleaved"]


@dataclass(frozen=True, slots=True)
class Task:
    """A part's forward or backward pass of a microbatch."""

    part: int
    microbatch: int
    backward: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """What is scheduled. devices: each part's; before: the parts that each part takes from;
    judged: whether the last is the loss, which holds up no microbatch."""

    devices: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    microbatches: int
    judged: bool = False

    @property
    def after(self) -> list[list[int]]:
        """The parts that take from each part."""
        parts = range(len(self.before))
        return [[b for b in parts if a in self.before[b]] for a in parts]


Orders = Mapping[int, Sequence[Task]]
"""By device, its tasks in order."""


@lru_cache(maxsize=64)
def order(shape: Shape, kind: Kind) -> Orders:
    """Worked out once for each shape. gpipe: all forward passes first; else a backward pass as soon
    as there is one, and no more microbatches under way than there are parts to come."""
    after = shape.after
    depth = _depths(after)
    if shape.judged:
        depth = [max(1, d - 1) for d in depth]
    done: set[Task] = set()
    orders: dict[int, list[Task]] = {device: [] for device in sorted(set(shape.devices))}
    left = {
        Task(part, m, backward)
        for part in range(len(shape.devices))
        for m in range(shape.microbatches)
        for backward in (False, True)
    }
    while left:
        held = kind != "gpipe"
        step = _chosen(left, done, shape, after, depth if held else None, kind)
        for task in step:
            orders[shape.devices[task.part]].append(task)
        done |= set(step)
        left -= set(step)
    return MappingProxyType({device: tuple(tasks) for device, tasks in orders.items()})


def _chosen(
    left: set[Task],
    done: set[Task],
    shape: Shape,
    after: Sequence[Sequence[int]],
    depth: Sequence[int] | None,
    kind: Kind,
) -> list[Task]:
    """The most urgent task of each device that may run now. depth: how many microbatches may be
    under way in each part; None for any number."""
    best: dict[int, Task] = {}
    for task in left:
        if depth is not None and not task.backward and _full(task, done, depth):
            continue
        if not _needs(task, shape.before, after) <= done:
            continue
        device = shape.devices[task.part]
        best[device] = min(best.get(device, task), task, key=lambda t: _urgency(t, kind))
    return list(best.values())


def _needs(
    task: Task, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
) -> set[Task]:
    m = task.microbatch
    if not task.backward:
        return {Task(part, m, False) for part in before[task.part]}
    return {Task(task.part, m, False), *(Task(part, m, True) for part in after[task.part])}


def _full(task: Task, done: set[Task], depth: Sequence[int]) -> bool:
    """Whether as many microbatches wait for their backward pass as there are parts to come."""
    mine = [t for t in done if t.part == task.part]
    under_way = sum(not t.backward for t in mine) - sum(t.backward for t in mine)
    return under_way >= depth[task.part]


def _urgency(task: Task, kind: Kind) -> tuple[bool, int, int]:
    if kind == "gpipe":
        return (task.backward, task.microbatch, task.part)
    return (not task.backward, task.microbatch, task.part)


def _depths(after: Sequence[Sequence[int]]) -> list[int]:
    """How many parts come from each on, itself counted."""
    depths = [1] * len(after)
    for part in reversed(range(len(after))):
        depths[part] = 1 + max((depths[b] for b in after[part]), default=0)
    return depths
