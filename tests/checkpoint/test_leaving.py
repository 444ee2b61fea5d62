"""A job is asked to leave: ranks of which one is asked stop at one end of a step, and save."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import dream
from dream.checkpoint import leaving
from dream.checkpoint.commits import Commits
from dream.checkpoint.leaving import Notice, StepEnds, Stop
from dream.cluster.settings import end_of_time
from dream.stall import activity

SCRIPT = """
import os, signal
from dream.checkpoint.commits import Commits
from dream.checkpoint.leaving import Notice
{before}
notice = Notice(float("inf"))
notice.listen()
assert not notice.why
os.kill(os.getpid(), signal.{name})
print(notice.why)
{after}
"""


def said(name: str, before: str = "", after: str = "") -> tuple[int, str]:
    text = SCRIPT.format(name=name, before=before, after=after)
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout.strip()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_is_heard_and_a_second_one_ends_the_process(name: str) -> None:
    assert said(name) == (0, name)
    again = f"os.kill(os.getpid(), signal.{name})"
    later = "from dream.checkpoint import leaving; leaving._ECHO_SECONDS = -1.0"
    code, _ = said(name, after=f"{later}\n{again}")
    assert code == -getattr(signal, name)
    # Slurm signals the launcher and the rank, and the launcher passes it on
    assert said(name, after=again) == (0, name)


def test_a_handler_of_the_script_stays() -> None:
    before = "signal.signal(signal.SIGUSR1, lambda *_: print('mine'))"
    assert said("SIGUSR1", before) == (0, "mine")


def test_after_the_block_a_signal_does_what_it_did() -> None:
    """One that came too late for a step among them."""
    code, out = said("SIGTERM", before="", after="notice.rest()")
    assert (code, out) == (-signal.SIGTERM, "SIGTERM")
    assert said("SIGTERM", after="notice.rest(again=False)") == (0, "SIGTERM")
    text = SCRIPT.partition("assert")[0].format(before="") + "notice.rest()\n"
    text += "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL"
    subprocess.run([sys.executable, "-c", text], check=True)


def test_the_end_of_the_schedulers_time() -> None:
    now = time.time()
    far, near = ({"SLURM_JOB_END_TIME": str(int(now + seconds))} for seconds in (600, 30))
    assert not Notice(end_of_time({})).why
    assert not Notice(end_of_time(far)).why
    assert Notice(end_of_time(near)).why == "the scheduler's time limit"


def test_ranks_talk_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(leaving.time, "monotonic", lambda: clock[0])
    ranks = dream.communicator(framework="torch")
    ends = StepEnds(ranks, Notice(float("inf")), 10.0, Commits(ranks, None))
    talked = []
    for step in range(12_000):
        clock[0] += 0.001
        agreed = ends.came()
        if agreed is not None:
            talked.append((step, agreed.due))
    assert 120 <= len(talked) <= 130
    assert [step // 1000 for step, due in talked if due] == [10]
    clock[0] += 5.0  # steps are slow now
    for _ in range(100):  # it had been many steps to the next
        clock[0] += 5.0
        ends.came()
    clock[0] += 5.0
    assert ends.came() is not None


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
