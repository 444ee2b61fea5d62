"""Workers and servers that die or stand still under `dream run`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("server_fault_torch.py")
KERAS = Path(__file__).with_name("server_fault_keras.py")
PATIENT = {"DREAM_STALL_SECONDS": "900", "DREAM_STARTUP_SECONDS": "900"}
"""Longer than a test may take: what ends before has not been waited for."""

pytestmark = pytest.mark.slow


def run(
    mode: str, folder: Path, *options: str, script: Path = SCRIPT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dream", "run", "-n", "3", "--all-output", *options, str(script),
         mode, str(folder)],
        capture_output=True, text=True, timeout=400, check=False,
        env=os.environ | {"KERAS_BACKEND": "tensorflow", **PATIENT},
    )  # fmt: skip


def read(folder: Path, epoch: int, what: str = "done") -> Counter[str]:
    """How often each sample was stepped on in an epoch."""
    files = folder.glob(f"{what}*-{epoch}")
    return Counter(word for file in files for word in file.read_text().split())


def everything(seen: Counter[str]) -> bool:
    return set(seen) == {str(index) for index in range(200)}


def test_a_worker_that_is_killed_comes_back(tmp_path: Path) -> None:
    end = run("kill", tmp_path)
    assert end.returncode == 0, end.stderr
    assert "Worker 1 was killed by SIGKILL" in end.stderr
    assert "The others continue; it is being restarted." in end.stderr
    assert "worker of rank 1 is lost" in end.stderr
    assert "1 workers lost, 1 came back, 5 samples repeated" in end.stdout
    assert read(tmp_path, 0) + read(tmp_path, 1) == {str(index): 2 for index in range(200)}


def test_a_worker_that_stands_still_is_found_and_done_without(tmp_path: Path) -> None:
    end = run("stop", tmp_path)
    assert end.returncode == 0, end.stderr
    assert "worker of rank 1 is lost: it has not been heard of for 10 s" in end.stderr
    assert "1 workers lost, 0 came back, 5 samples repeated" in end.stdout
    assert everything(read(tmp_path, 0))
    assert everything(read(tmp_path, 1))


def test_a_server_that_dies_stops_the_job_at_once(tmp_path: Path) -> None:
    end = run("server", tmp_path)
    assert end.returncode == 137
    assert "Rank 2 was killed by SIGKILL" in end.stderr


def test_a_server_that_dies_is_started_again_from_its_snapshot(tmp_path: Path) -> None:
    end = run("server", tmp_path, "--max-restarts", "1")
    assert end.returncode == 0, end.stderr
    assert "Starting again, 1 of 1." in end.stderr
    assert "training resumes from the snapshot after 5 updates" in end.stderr
    assert "80 updates" in end.stdout
    first = read(tmp_path, 0)
    unsaid = {str(index) for index in range(200)} - set(first)  # pushed, and no answer came
    assert len(unsaid) <= 2 * 5
    assert unsaid <= set(read(tmp_path, 0, "began"))
    assert everything(read(tmp_path, 1))
    assert first.total() < 2 * 200  # what was in the snapshot was not done again


@pytest.mark.exhaustive
def test_a_keras_worker_that_is_killed_is_done_without(tmp_path: Path) -> None:
    """It may come back before the others are done, or after."""
    end = run("kill", tmp_path, script=KERAS)
    assert end.returncode == 0, end.stderr
    assert "Worker 1 was killed by SIGKILL" in end.stderr
    assert "1 workers lost" in end.stdout
    assert "80 updates" in end.stdout
    assert "optimizer counts 80" in end.stdout


@pytest.mark.exhaustive
def test_a_keras_server_that_dies_is_started_again_from_its_snapshot(tmp_path: Path) -> None:
    end = run("server", tmp_path, "--max-restarts", "1", script=KERAS)
    assert end.returncode == 0, end.stderr
    assert "training resumes from the snapshot after 5 updates" in end.stderr
    assert "80 updates" in end.stdout
    assert "optimizer counts 80" in end.stdout
