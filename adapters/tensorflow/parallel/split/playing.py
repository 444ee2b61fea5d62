"""Plays a schedule: a thread for each device takes its tasks in order, and waits for what they
need. What one thread raises ends them all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import final

from dream._errors import WorkerFailed
from dream.adapters.tensorflow.parallel.split.schedule import Task

_PATIENCE = 600.0


def play(
    orders: Mapping[int, Sequence[Task]],
    needs: Callable[[Task], Sequence[Task]],
    run: Callable[[Task], None],
) -> None:
    """Run every task once, each device's in its order and after what it needs."""
    board = _Board()

    def device(tasks: Sequence[Task]) -> None:
        try:
            for task in tasks:
                board.wait(needs(task))
                run(task)
                board.done(task)
        except BaseException as error:
            board.fail(error)

    threads = [
        threading.Thread(target=device, args=(tasks,), name=f"dream-device-{index}", daemon=True)
        for index, tasks in orders.items()
    ]
    if len(threads) == 1:
        device(orders[next(iter(orders))])
    else:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    board.raise_failure()


def play_by_turns(
    orders: Mapping[int, Sequence[Task]],
    needs: Callable[[Task], Sequence[Task]],
    run: Callable[[Task], None],
) -> None:
    """The same in this thread alone."""
    left = {device: list(tasks) for device, tasks in orders.items()}
    done: set[Task] = set()
    while any(left.values()):
        for tasks in left.values():
            while tasks and set(needs(tasks[0])) <= done:
                run(tasks[0])
                done.add(tasks.pop(0))


@final
class _Board:
    """Which tasks are done."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._done: set[Task] = set()
        self._failure: BaseException | None = None

    def wait(self, tasks: Sequence[Task]) -> None:
        wanted = set(tasks)
        with self._changed:
            ready = self._changed.wait_for(
                lambda: wanted <= self._done or self._failure is not None, _PATIENCE
            )
            if self._failure is not None:
                raise SystemExit  # the one that failed says why
            if not ready:
                raise WorkerFailed(
                    f"A device of this process fell silent. Received: nothing for {_PATIENCE:g} s. "
                    "Look at what its stage computes."
                )

    def done(self, task: Task) -> None:
        with self._changed:
            self._done.add(task)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
