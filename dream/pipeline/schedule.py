"""In which order the stages of a model run their microbatches, and the threads that run them.

The order is found by playing the schedule through, a unit of time a task, so it can always be run:
no device waits for what comes later on another that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from functools import lru_cache
from threading import Thread
from typing import Literal, TypeVar

from dream._errors import WorkerFailed

Kind = Literal["gpipe", "1f1b", "interleaved"]
_PATIENCE = 600.0


@dataclass(frozen=True, slots=True)
class StageTask:
    """A stage's forward or backward pass of a microbatch."""

    stage: int
    microbatch: int
    backward: bool


@dataclass(frozen=True, slots=True)
class StageGraph:
    """The stages that are scheduled. devices: each stage's; before: the stages that each takes
    from. The last stage is the loss, which holds up no microbatch."""

    devices: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]

    def needs(self, task: StageTask) -> set[StageTask]:
        """The tasks that come before."""
        stage, m = task.stage, task.microbatch
        if not task.backward:
            return {StageTask(a, m, False) for a in self.before[stage]}
        return {StageTask(stage, m, False), *(StageTask(b, m, True) for b in self.after(stage))}

    def after(self, stage: int) -> list[int]:
        """The stages that take from one."""
        return [b for b, before in enumerate(self.before) if stage in before]

    @property
    def depths(self) -> list[int]:
        """By stage, how many microbatches fill what is to come, the loss left out."""
        found = [1] * len(self.before)
        for stage in reversed(range(len(found))):
            found[stage] = 1 + max((found[b] for b in self.after(stage)), default=0)
        return [max(1, depth - 1) for depth in found]


@lru_cache(maxsize=64)
def order(graph: StageGraph, microbatches: int, kind: Kind) -> tuple[StageTask, ...]:
    """All tasks in the order of time, worked out once for each graph. gpipe: all forward passes
    first; else a backward pass as soon as there is one, and no more microbatches under way than
    there are stages to come."""
    depths = graph.depths
    under_way = [0] * len(depths)
    done: dict[StageTask, None] = {}
    left = {
        StageTask(stage, m, backward)
        for stage in range(len(depths))
        for m in range(microbatches)
        for backward in (False, True)
    }
    needs = {task: graph.needs(task) for task in left}
    while left:
        urgent: dict[int, StageTask] = {}
        for task in left:
            full = not task.backward and under_way[task.stage] >= depths[task.stage]
            if (full and kind != "gpipe") or not needs[task] <= done.keys():
                continue
            device = graph.devices[task.stage]
            urgent[device] = min(urgent.get(device, task), task, key=lambda t: _urgency(t, kind))
        for task in urgent.values():
            under_way[task.stage] += -1 if task.backward else 1
        done |= dict.fromkeys(urgent.values())
        left -= done.keys()
    return tuple(done)


def _urgency(task: StageTask, kind: Kind) -> tuple[bool, int, int]:
    last = task.backward if kind == "gpipe" else not task.backward
    return last, task.microbatch, task.stage


_Device = TypeVar("_Device", bound=Hashable)


def play(
    orders: Mapping[_Device, Sequence[StageTask]],
    graph: StageGraph,
    run: Callable[[_Device, StageTask], None],
) -> None:
    """Run every task once, in a thread for each device, in its order and after what it needs. What
    one thread raises ends them all."""
    done: dict[StageTask, Future[None]] = {t: Future() for tasks in orders.values() for t in tasks}

    def act(device: _Device) -> None:
        try:
            for task in orders[device]:
                _await([done[needed] for needed in graph.needs(task)])
                run(device, task)
                done[task].set_result(None)
        except BaseException as error:  # which those that wait for a task of this device raise too
            for task in orders[device]:
                if not done[task].done():
                    done[task].set_exception(error)

    threads = [
        Thread(target=act, args=(device,), name=f"dream-device-{device}", daemon=True)
        for device in orders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for task in done.values():
        task.result()


def _await(tasks: Sequence[Future[None]]) -> None:
    done, left = wait(tasks, _PATIENCE, FIRST_EXCEPTION)
    for task in done:
        task.result()
    if left:
        raise WorkerFailed(
            f"A device of this process stopped responding. Received: nothing for {_PATIENCE:g} s. "
            "Check what its stage computes."
        )
