"""A job that loses ranks or hosts for good, and takes hosts in, ends where it would have ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from going_on_scripts import KERAS
from memberships import changed, summed

from dream.launch.ending import Blame, Ending, Outcome
from dream.launch.job import Job
from dream.launch.restarts import Restarts

pytestmark = pytest.mark.slow
SECONDS = 240.0
LOST = Outcome(9.0, Blame(Ending(1, -9, 5.0)))


def test_a_rank_is_lost_for_good_once_the_restarts_are_spent() -> None:
    job, them = Job(("script", "x"), n=3, min_n=2, max_restarts=1), Restarts()
    sizes = []
    while (again := them.next(job, LOST)) is not None:
        job = again
        sizes.append(job.n)
    assert sizes == [3, 2, 2]


def test_a_host_that_is_lost_spends_no_restart() -> None:
    job, them = Job(("script", "x"), n=1, nnodes=3, min_nodes=1), Restarts()
    for outcome in (
        Outcome(9.0, lost="node 2 (c) is gone"),
        Outcome(9.0, lost="node 2 (c) joins", grace=True, changes=True),
    ):
        assert them.next(job, outcome) is not None
    stopped = Outcome(9.0, lost="node 0 (a) was stopped by SIGTERM", grace=True)
    assert them.next(job, stopped) is None
    assert them.next(job, LOST) is None
    assert them.next(Job(("script", "x"), n=1, nnodes=3), Outcome(9.0, lost="gone")) is None


class Training:
    """A training of the script, and what its launchers say."""

    def __init__(self, script: Path, word: str, folder: Path, seconds: str = "0.05") -> None:
        folder.mkdir()
        self.folder, self.out = folder, folder / "end.json"
        self.script = [str(script), word, str(self.out), seconds]
        self.launchers: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *options: str, node: int = 0) -> None:
        given = ["--checkpoint", str(self.folder / "kept"), "--every", "0.01", *options]
        with (self.folder / f"said{node}").open("ab") as said:
            self.launchers[node] = subprocess.Popen(
                [sys.executable, "-m", "dream", "run", *given, *self.script],
                stdout=said, stderr=said, env=os.environ | {"DREAM_TOKEN": "a" * 16},
            )  # fmt: skip

    def said(self, node: int = 0) -> str:
        return (self.folder / f"said{node}").read_text()

    def rank(self, number: int) -> tuple[int, int]:
        """Return its step and its process, (0, 0) where it has not come to any."""
        file = Path(f"{self.out}.step.{number}")
        words = file.read_text().split() if file.exists() else []
        return (int(words[0]), int(words[1])) if len(words) == 2 else (0, 0)

    def until(self, true: str, number: int, step: int) -> int:
        """Wait until a rank has come to a step, in a process that still runs."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and not self.out.exists():
            at, process = self.rank(number)
            if at >= step and Path(f"/proc/{process}").exists():
                return process
            time.sleep(0.01)
        raise AssertionError(f"{true}: rank {number} has not come to step {step}: {self.said()}")

    def until_said(self, words: str) -> None:
        end = time.monotonic() + SECONDS
        while words not in self.said():
            assert time.monotonic() < end, self.said()
            assert not self.out.exists(), self.said()
            time.sleep(0.01)

    def kill(self, node: int) -> None:
        launcher = self.launchers.pop(node)
        launcher.kill()
        launcher.wait()

    def end(self) -> dict[str, object]:
        """Have the steps that are left take no time, and return what it ends with."""
        Path(f"{self.out}.hurry").touch()
        for node, launcher in self.launchers.items():
            assert launcher.wait(SECONDS) == 0, self.said(node)
        told: dict[str, object] = json.loads(self.out.read_text())
        return told


@contextmanager
def training(script: Path, word: str, folder: Path, seconds: str = "0.05") -> Iterator[Training]:
    made = Training(script, word, folder, seconds)
    try:
        yield made
    finally:
        for launcher in made.launchers.values():
            launcher.kill()
            launcher.wait()


def same(told: dict[str, object], whole: dict[str, object]) -> None:
    for name in whole.keys() - {"from"}:
        np.testing.assert_allclose(told[name], whole[name], rtol=0, atol=1e-6, err_msg=name)


def host(port: int, node: int, count: str) -> Sequence[str]:
    return ("-n", "1", "--nnodes", count, "--node-rank", str(node), "--master-addr", "127.0.0.1",
            "--master-port", str(port), "--node-timeout", "5")  # fmt: skip


FEWER = [
    ("mirrored", "1:2"),
    pytest.param("sharded:zero=3", "2:3", marks=pytest.mark.exhaustive),
    pytest.param("sharded:zero=2", "2:3", marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize(("word", "count"), FEWER)
def test_a_rank_that_is_lost_for_good(
    torch_script: Path, undisturbed: dict[str, object], tmp_path: Path, word: str, count: str
) -> None:
    """The others go on, and after a while all of them."""
    least, most = map(int, count.split(":"))
    with training(torch_script, word.partition(":")[0], tmp_path / "job", "0.15") as job:
        job.start("-n", count, "--strategy", word, "--grow-after", "1", "--every", "600")
        os.kill(job.until("all ranks", most - 1, 5), signal.SIGKILL)
        job.until_said(f"Starting again, with all {most} ranks, from")
        same(job.end(), undisturbed)
    said = job.said()
    assert f"Starting again with {most - 1}, of {least} at least, from step" in said
    assert "Ranks that were lost are tried again: the ranks save what they have." in said


def test_hosts_that_come_and_go(
    torch_script: Path, undisturbed: dict[str, object], free_port: int, tmp_path: Path
) -> None:
    """One that comes is taken in, one that dies is done without, one that is stopped leaves."""
    with training(torch_script, "mirrored", tmp_path / "job", "0.4") as job:
        for node in (0, 1):
            job.start(*host(free_port, node, "1:2"), node=node)
        os.kill(job.until("two hosts", 1, 6), 0)
        job.kill(1)
        before, _ = job.rank(0)
        job.until("one is lost", 0, before + 3)
        Path(f"{job.out}.step.1").unlink()
        job.start(*host(free_port, 1, "1:2"), node=1)
        job.until("it joins", 1, before + 4)
        job.launchers[1].terminate()
        assert job.launchers.pop(1).wait(SECONDS) == 85
        same(job.end(), undisturbed)
    said = job.said()
    assert said.count("2 of 2 hosts: node 0") == 2
    for line in ("is gone: its launcher was killed", "joins: the ranks save what they have",
                 "was stopped by SIGTERM: the ranks save"):  # fmt: skip
        assert line in said


@pytest.mark.exhaustive
def test_a_host_of_another_kind_is_refused_alone(
    torch_script: Path, free_port: int, tmp_path: Path
) -> None:
    with training(torch_script, "mirrored", tmp_path / "job", "0.2") as job:
        job.start(*host(free_port, 0, "1:2"))
        job.until("alone", 0, 3)
        job.start(*host(free_port, 1, "1:2"), "-n", "2", node=1)
        assert job.launchers.pop(1).wait(SECONDS) == 2
        assert "differ in -n" in job.said(1)
        job.end()


@pytest.fixture
def free_port() -> int:
    from launch_scripts import free_port as found

    return found()


@pytest.mark.exhaustive
def test_keras_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(KERAS)
    with training(script, "mirrored", tmp_path / "whole", "0") as whole:
        whole.start("-n", "1", "--framework", "tensorflow")
        before = whole.end()
    with training(script, "mirrored", tmp_path / "job") as job:
        job.start("-n", "1:2", "--framework", "tensorflow")
        os.kill(job.until("two ranks", 1, 9), signal.SIGKILL)
        same(job.end(), before)


@pytest.mark.exhaustive
def test_memberships_that_change_at_random(tmp_path: Path) -> None:
    """Die, leave or join, once or twice at one time, in steps and in saves. Hundreds are those of
    memberships.py, which goes on where it was."""
    lines: list[str] = []
    changed(tmp_path, range(int(os.environ.get("DREAM_TEST_MEMBERSHIPS", "8"))), 1, lines.append)
    found = summed(lines)
    assert found["gap"] < 1e-6, lines
    assert not found["wrong epochs"], lines
    assert min(found["die"], found["leave"], found["join"]) > 0
