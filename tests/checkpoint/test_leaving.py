from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

import dream
from dream.checkpoint import leaving
from dream.checkpoint.commits import Commits
from dream.checkpoint.leaving import Notice, StepEnds
from dream.cluster.settings import end_of_time

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
