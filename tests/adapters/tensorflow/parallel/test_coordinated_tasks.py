"""TensorFlow's own parameter servers, task by task: under `dream run`, and by TF_CONFIG; tasks that
die."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch_scripts import keras_on, row_of_ports, start_alone

SCRIPT = Path(__file__).with_name("coordinated_script.py")
ENV = keras_on("tensorflow")
PATIENT = {"DREAM_STALL_SECONDS": "900", "DREAM_STARTUP_SECONDS": "900"}
"""Longer than a test may take: what ends before has not been waited for."""

DONE = re.compile(r"each done: True, again: [01], right: 1.0")

pytestmark = pytest.mark.slow


def by_tf_config(
    mode: str, folder: Path, patience: dict[str, str] = PATIENT
) -> dict[str, tuple[int, str, str]]:
    """Start every task by itself; exit code and what it said, of each."""
    tasks = ("chief", "worker", "ps", "evaluator")
    cluster = {
        task: [f"127.0.0.1:{port}"] for task, port in zip(tasks[:3], row_of_ports(3), strict=True)
    }
    started = {
        task: start_alone(
            [str(SCRIPT), mode, str(folder)], "tensorflow,keras", folder / task,
            {**os.environ, **ENV, **patience, "TF_CONFIG": json.dumps(
                {"cluster": cluster, "task": {"type": task, "index": 0}})},
        )
        for task in (tasks if mode == "train" else tasks[:3])
    }  # fmt: skip
    limit = time.monotonic() + 400
    while any(each.poll() is None for each in started.values()) and time.monotonic() < limit:
        time.sleep(0.02)
    for each in started.values():
        if each.poll() is None:
            os.kill(each.pid, signal.SIGKILL)
    return {
        task: (each.wait(), *((folder / f"{task}.{end}").read_text() for end in ("out", "err")))
        for task, each in started.items()
    }


def test_a_worker_that_is_killed_comes_back_and_its_step_is_done_again(tmp_path: Path) -> None:
    """It is the only one, so the job waits for it."""
    end = subprocess.run(
        [sys.executable, "-m", "dream", "run", "-n", "3", "--all-output", str(SCRIPT), "worker",
         str(tmp_path)],
        capture_output=True, text=True, timeout=400, check=False, env=os.environ | ENV | PATIENT,
    )  # fmt: skip
    assert end.returncode == 0, end.stderr
    assert "Worker 1 was killed by SIGKILL" in end.stderr
    assert "it is being restarted" in end.stderr
    assert DONE.search(end.stdout)


def test_the_chief_trains_and_the_evaluator_says_how_good_that_is(tmp_path: Path) -> None:
    ended = by_tf_config("train", tmp_path)
    assert [code for code, _, _ in ended.values()] == [0] * 4, ended
    assert DONE.search(ended["chief"][1])
    assert ended["worker"][1] == ended["ps"][1] == ""
    assert ended["evaluator"][1].splitlines() == [
        "evaluator",
        *["An evaluator trains nothing, and has no workers"] * 2,
        "An evaluator trains nothing",
        "evaluator: {'right': 1.0}",
    ]


def test_a_server_that_is_killed_ends_the_job_and_is_named(tmp_path: Path) -> None:
    """Where no launcher watches, too."""
    ended = by_tf_config("server", tmp_path)
    assert ended["ps"][0] == -9
    assert ended["chief"][0] == 1
    assert "WorkerFailed: Server 0 is gone (rank 2)" in ended["chief"][2]
    assert ended["worker"][0] in (0, 1)  # dismissed by the chief, or left by it


@pytest.mark.exhaustive
def test_a_chief_does_not_wait_for_ever_for_a_worker_that_nobody_starts_again(
    tmp_path: Path,
) -> None:
    ended = by_tf_config("worker", tmp_path, PATIENT | {"DREAM_STARTUP_SECONDS": "20"})
    assert ended["worker"][0] == -9
    assert ended["chief"][0] == 1
    assert "All workers are lost, and none came back within 20 s" in ended["chief"][2]
    assert ended["ps"][0] in (0, 1)
