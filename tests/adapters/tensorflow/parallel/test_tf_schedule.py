"""The order of microbatches, and the threads that play it: no TensorFlow is needed."""

from __future__ import annotations

import threading

import pytest

from dream.adapters.tensorflow.parallel.split.playing import play, play_by_turns
from dream.adapters.tensorflow.parallel.split.schedule import Shape, Task, order

CHAIN = Shape((0, 1, 0, 1), ((), (0,), (1,), (2,)), 5)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved"])
def test_every_task_runs_once_after_what_it_needs(kind: str) -> None:
    orders = order(CHAIN, kind)
    tasks = [task for tasks in orders.values() for task in tasks]
    assert len(tasks) == len(set(tasks)) == 4 * 5 * 2
    seen: list[Task] = []
    play_by_turns(orders, lambda task: needs(task, 4), seen.append)
    for index, task in enumerate(seen):
        assert set(needs(task, 4)) <= set(seen[:index])


def test_gpipe_has_all_forward_passes_first() -> None:
    (first, *_), *_ = order(CHAIN, "gpipe").values()
    assert first == Task(0, 0, False)
    for tasks in order(Shape((0, 1), ((), (0,)), 4), "gpipe").values():
        assert [task.backward for task in tasks] == [False] * 4 + [True] * 4


def test_1f1b_keeps_few_microbatches_under_way() -> None:
    orders = order(Shape((0, 1), ((), (0,)), 6), "1f1b")
    assert [task.backward for task in orders[1]] == [False, True] * 6
    under_way = 0
    for task in orders[0]:
        under_way += -1 if task.backward else 1
        assert under_way <= 2


def test_branches_run_at_the_same_time() -> None:
    """Each waits for the other: a single thread would never come through."""
    both = threading.Barrier(2)
    shape = Shape((0, 1, 1), ((), (), (0, 1)), 1)

    def run(task: Task) -> None:
        if task.part < 2 and not task.backward:
            both.wait(100)

    def needed(task: Task) -> list[Task]:
        return [Task(0, 0, False), Task(1, 0, False)] if task.part == 2 else []

    play(order(shape, "gpipe"), needed, run)


def test_what_one_device_raises_ends_all() -> None:
    def run(task: Task) -> None:
        if task == Task(1, 2, False):
            raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        play(order(CHAIN, "1f1b"), lambda task: needs(task, 4), run)


def needs(task: Task, parts: int) -> list[Task]:
    m = task.microbatch
    if not task.backward:
        return [Task(task.part - 1, m, False)] if task.part else []
    later = [Task(task.part + 1, m, True)] if task.part + 1 < parts else []
    return [Task(task.part, m, False), *later]
