"""A request to leave comes to one rank while no step ends: in an evaluation, as the first step is
compiled, in a loader's wait, in a sleep. All ranks save together and leave all the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).with_name("asked")
STATES = ("evaluation", "compilation", "loader", "sleep")
HOW = ("SIGTERM", "SIGUSR1", "Slurm's time")
ENDS = {"torch load": 85, "torch": 0, "keras": 85}
"""What a job ends with that is asked after its last step: one that is gone through again ends."""
pytestmark = pytest.mark.slow


def command(kind: str, folder: Path) -> list[str]:
    script = SCRIPTS / f"{kind.partition(' ')[0]}_script.py"
    options = ["-n", "2", "--checkpoint", str(folder / "kept"), "--every", "600"]
    arguments = [str(folder / "out.json"), *kind.split()[1:]]
    return [sys.executable, "-m", "dream", "run", *options, str(script), *arguments]


def weights(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return told


def pid_at(mark: Path, rank: int) -> int:
    """Return the process of a rank once it is in its long state."""
    file, end = mark.with_name(f"{mark.name}.{rank}"), time.monotonic() + 150
    while time.monotonic() < end:
        if file.exists() and (said := file.read_text()):
            return int(said)
        time.sleep(0.01)
    raise AssertionError(f"rank {rank} has not come to its state")


def left(kind: str, state: str, how: str, drawn: random.Random, folder: Path) -> tuple[int, str]:
    """Ask one rank in a state, and return how the job ended."""
    mark = folder / "mark"
    told = {**os.environ, "LONG_STATE": state, "LONG_MARK": str(mark)}
    if how == "Slurm's time":
        told["SLURM_JOB_END_TIME"] = str(int(time.time()) + 75)
    with subprocess.Popen(command(kind, folder), stdout=-1, stderr=-1, text=True, env=told) as job:
        try:
            process = pid_at(mark, drawn.randrange(2))
            time.sleep(drawn.uniform(0.0, 1.0))
            if how != "Slurm's time":
                os.kill(process, getattr(signal, how))
            _, said = job.communicate(timeout=150)
        finally:
            job.kill()
    return job.returncode, said


def check(kind: str, state: str, how: str, seed: int, folder: Path, expected: Any) -> None:
    folder.mkdir()
    ended, said = left(kind, state, how, random.Random(seed), folder)
    assert ended == (ENDS[kind] if state == "end" else 85), said
    if ended == 85:
        assert "has saved and left" in said
        ran = subprocess.run(command(kind, folder), capture_output=True, text=True, timeout=200)
        assert ran.returncode == 0, ran.stderr
    found = weights(folder)
    assert max(np.abs(np.subtract(found[n], expected[n])).max() for n in expected) < 1e-6


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By framework, the weights of a training that nobody asked to leave."""
    found: dict[str, Any] = {}
    for kind in ("torch", "keras"):
        folder = tmp_path_factory.mktemp(kind)
        subprocess.run(command(kind, folder), check=True, timeout=200, capture_output=True)
        found[kind] = weights(folder)
    return found


FEW = [("torch", "evaluation", "SIGTERM"), ("torch load", "loader", "SIGUSR1"),
       ("keras", "compilation", "SIGTERM"), ("torch", "end", "SIGTERM")]  # fmt: skip


@pytest.mark.parametrize(("kind", "state", "how"), FEW)
def test_asked_where_no_step_ends(
    kind: str, state: str, how: str, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    check(kind, state, how, 1, tmp_path / "run", undisturbed[kind.partition(" ")[0]])


@pytest.mark.exhaustive
def test_asked_a_hundred_times(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    for seed in range(int(os.environ.get("DREAM_TEST_ASKED", "100"))):
        drawn = random.Random(1000 + seed)
        kind, state = drawn.choice([*ENDS]), drawn.choice([*STATES, "end"])
        how = drawn.choice(HOW)
        name = kind.partition(" ")[0]
        check(kind, state, how, seed, tmp_path / str(seed), undisturbed[name])
