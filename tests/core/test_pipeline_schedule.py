"""The order of microbatches, and the threads that play it."""

from __future__ import annotations

import threading

import pytest

from dream.pipeline.schedule import Kind, StageGraph, StageTask, order, play

CHAIN = StageGraph((0, 1, 0, 1, 1), ((), (0,), (1,), (2,), (3,)))
TWO = StageGraph((0, 1, 1), ((), (0,), (1,)))
"""The last is the loss."""


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved"])
def test_every_task_runs_once_after_what_it_needs(kind: Kind) -> None:
    tasks = order(CHAIN, 5, kind)
    assert len(tasks) == len(set(tasks)) == 5 * 5 * 2
    for index, task in enumerate(tasks):
        assert needs(task, 5) <= set(tasks[:index])
    seen: list[StageTask] = []
    play(by_device(CHAIN, 5, kind), CHAIN, lambda _, task: seen.append(task))
    assert len(seen) == len(tasks)
    for index, task in enumerate(seen):
        assert needs(task, 5) <= set(seen[:index])


def test_gpipe_has_all_forward_passes_first() -> None:
    assert order(CHAIN, 5, "gpipe")[0] == StageTask(0, 0, False)
    for tasks in by_device(TWO, 4, "gpipe").values():
        of_stages = [task.backward for task in tasks if task.stage < 2]
        assert of_stages == [False] * 4 + [True] * 4


def test_1f1b_keeps_few_microbatches_under_way() -> None:
    orders = by_device(TWO, 6, "1f1b")
    assert [task.backward for task in orders[1] if task.stage == 1] == [False, True] * 6
    under_way = 0
    for task in orders[0]:
        under_way += -1 if task.backward else 1
        assert under_way <= 2


def test_branches_run_at_the_same_time() -> None:
    """Each waits for the other: a single thread would never come through."""
    both = threading.Barrier(2)
    graph = StageGraph((0, 1, 1), ((), (), (0, 1)))

    def run(_: int, task: StageTask) -> None:
        if task.stage < 2 and not task.backward:
            both.wait(100)

    play(by_device(graph, 1, "gpipe"), graph, run)


def test_what_one_device_raises_ends_all() -> None:
    def run(_: int, task: StageTask) -> None:
        if task == StageTask(1, 2, False):
            raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        play(by_device(CHAIN, 5, "1f1b"), CHAIN, run)


def by_device(graph: StageGraph, microbatches: int, kind: Kind) -> dict[int, list[StageTask]]:
    orders: dict[int, list[StageTask]] = {device: [] for device in graph.devices}
    for task in order(graph, microbatches, kind):
        orders[graph.devices[task.stage]].append(task)
    return orders


def needs(task: StageTask, stages: int) -> set[StageTask]:
    """What a chain says of itself."""
    m = task.microbatch
    if not task.backward:
        return {StageTask(task.stage - 1, m, False)} if task.stage else set()
    later = {StageTask(task.stage + 1, m, True)} if task.stage + 1 < stages else set()
    return {StageTask(task.stage, m, False), *later}
