"""Whatever becomes of a rank, the others are told which, soon, and nothing stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import native_job
import pytest
from native_calls import Asked

from dream.shared_memory import status

pytestmark = pytest.mark.skipif(status().path is None, reason=status().why)
VICTIMS = Path(__file__).with_name("native_victims.py")
TOLD = {
    "killed": "WorkerFailed: Rank {} is gone",
    "exits": "WorkerFailed: Rank {} is gone",
    "closes": "WorkerFailed: Rank {} ",
    "stopped": "Desynchronized: Rank {} did not come to ",
}


def run_victims(trials: int, seed: int) -> None:
    before = native_job.left_in_shared_memory()
    done = subprocess.run(
        [sys.executable, str(VICTIMS), str(trials), str(seed)],
        capture_output=True, text=True, timeout=300 + 20 * trials,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == trials
    for one in found:
        wanted = TOLD[one["fate"]].format(one["victim"])
        assert all(said.startswith(wanted) for said in one["said"]), one
    assert native_job.left_in_shared_memory() == before


def test_some_end_at_random_moments() -> None:
    run_victims(20, seed=1)


@pytest.mark.exhaustive
def test_two_hundred_end_at_random_moments() -> None:
    run_victims(200, seed=2)


MINE = Asked("all_reduce", 1000, "float32", "sum")
DIFFERENT = {
    "op": (Asked("all_reduce", 1000, "float32", "max"), "all_reduce(op='max') of float32 (1000,)"),
    "dtype": (Asked("all_reduce", 1000, "int32"), "all_reduce(op='sum') of int32 (1000,)"),
    "count": (Asked("all_reduce", 999), "all_reduce(op='sum') of float32 (999,)"),
    "much": (Asked("all_reduce", 999_999), "all_reduce(op='sum') of float32 (999999,)"),
    "there": (Asked("reduce_there", 1000), "reduce_there(op='sum') of float32 (1000,)"),
    "kind": (Asked("broadcast", 1000), "broadcast(root=0) of float32 (1000,)"),
    "moves": (Asked("all_to_all", 1000), "all_to_all() of float32"),
}


@pytest.fixture(scope="module")
def three() -> object:
    with native_job.job(3) as job:
        job.gave("connect", "faults")
        job.gave("lay_row")
        yield job


@pytest.mark.parametrize("what", DIFFERENT)
def test_calls_that_differ_are_named_on_every_rank(three: native_job.Job, what: str) -> None:
    odd, words = DIFFERENT[what]
    found = three.gave("differing", MINE, odd)
    for said, untouched in found:
        assert said.startswith("Desynchronized: The ranks are not in the same call."), said
        assert "ranks 0, 1: all_reduce(op='sum') of float32 (1000,)" in said
        assert f"rank 2: {words}" in said
        assert untouched
    assert len({said for said, _ in found}) == 1
    three.gave("barrier")


@pytest.mark.parametrize(
    ("kind", "words"), [("all_gather", "lengths "), ("all_to_all", "differ from what the others")]
)
def test_lengths_that_differ_too(three: native_job.Job, kind: str, words: str) -> None:
    for said, untouched in three.gave("differing", Asked(kind, 100), Asked(kind, 101)):
        assert said.startswith("Desynchronized: "), said
        assert words in said
        assert untouched
    three.gave("barrier")


def test_a_signal_is_heard_while_waiting() -> None:
    """The one that got it says so; the others do not wait for it."""
    with native_job.job(2) as job:
        job.gave("connect", "signal")
        job.ask("wait_for_others", ranks=[0])
        assert job.answer(0) == "waits"
        os.kill(job.processes[0].pid, signal.SIGINT)
        assert job.answer(0).startswith("KeyboardInterrupt")
        for one in job.gave("call_again"):
            assert one.startswith("WorkerFailed: Rank 0 has left")


def test_one_that_never_comes_is_named() -> None:
    with native_job.job(3, DREAM_STALL_SECONDS="4") as job:
        job.gave("connect", "absent")
        job.gave("call", MINE)
        job.ask("until_it_fails", 0.1, ranks=(0, 2))
        for rank in (0, 2):
            said = job.answer(rank)
            assert said.startswith("Desynchronized: Rank 1 did not come to all_reduce(op='max')")
            assert "rank 1 was last in all_reduce(op='sum') of float32 (1000,)" in said
