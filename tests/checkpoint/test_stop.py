"""Ranks of which one is asked stop at one end of a step, whichever each has come to."""

from __future__ import annotations

import random
import threading
import time

import pytest

from dream.checkpoint import leaving
from dream.checkpoint.leaving import Stop
from dream.stall import activity


class Values:
    """A job's store, as slow as one of another host."""

    def __init__(self, drawn: random.Random) -> None:
        self._drawn = drawn
        self._values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        time.sleep(self._drawn.uniform(0, 0.003))
        self._values[key] = value

    def find(self, key: str) -> bytes | None:
        time.sleep(self._drawn.uniform(0, 0.003))
        return self._values.get(key)

    def delete(self, key: str) -> None:
        del self._values[key]


class Rank:
    """Steps of which each waits for all ranks, and what else takes time is each one's own."""

    def __init__(self, number: int, ranks: int, together: threading.Barrier, store: Values) -> None:
        self.asked = ""
        self.left: int | None = None
        self._together = together
        self._stop = Stop(number, ranks, lambda: self.asked, store, "leave/x")

    def train(self, steps: int, asked_at: int, drawn: random.Random) -> None:
        for step in range(1, steps + 1):
            self._together.wait(60)
            if step == asked_at:
                self.asked = "SIGTERM"
            time.sleep(drawn.uniform(0, 0.004))
            if self._stop.came():
                self.left = step
                return
        if asked_at > steps:
            self.asked = "SIGTERM"
        if self._stop.ended():
            self.left = steps + 1


def test_a_rank_whose_loop_is_over_tells_that_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "_LOOK_SECONDS", 0.02)
    store = Values(random.Random(0))
    first, second = (Stop(rank, 2, lambda: "", store, "leave/x") for rank in range(2))
    left = threading.Thread(target=first.ended, daemon=True)
    left.start()
    while activity.longest_wait() is None:
        assert left.is_alive()
        time.sleep(0.01)
    wait = activity.longest_wait()
    assert wait is not None
    assert wait.patient
    assert "loop" in wait.call
    assert not second.ended()
    left.join(60)
    assert activity.longest_wait() is None


@pytest.mark.parametrize(("seed", "at"), [(1, 1), (2, 20), (3, 40), (4, 60), (5, 61), (6, 0)])
def test_all_stop_at_the_same_end(seed: int, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """at: where two of them are asked; 0 where nobody is, and none stops."""
    monkeypatch.setattr(leaving, "_LOOK_SECONDS", 0.02)
    drawn, together = random.Random(seed), threading.Barrier(4)
    store = Values(random.Random(seed))
    ranks = [Rank(number, 4, together, store) for number in range(4)]
    threads = [
        threading.Thread(
            target=rank.train, args=(60, at if rank in ranks[2:] else 0, random.Random(n))
        )
        for n, rank in enumerate(ranks)
    ]
    drawn.shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    left = {rank.left for rank in ranks}
    assert len(left) == 1
    where = left.pop()
    assert where is None if at == 0 else where is not None and at <= where <= 61
