"""Ranks, launchers and disks that fail at random moments of saves: what was said to be saved is
there, and nothing half is taken for whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from dream.checkpoint import CheckpointFolder

KINDS = ("rank 0", "rank 1", "launcher", "full disk")
SCRIPT = Path(__file__).with_name("checkpoint_kills.py")


def read(path: Path) -> int:
    return int(path.read_text()) if path.exists() else 0


def kill_once(folder: Path, kind: str, draw: random.Random) -> None:
    """Start a job that goes on from what is there, and kill one of it at a random moment."""
    before = read(Path(f"{folder}.saved"))
    full = str(draw.randrange(1, 5)) if kind == "full disk" else "0"
    command = [sys.executable, "-m", "dream", "run", "-n", "2", str(SCRIPT), str(folder), full]
    job = subprocess.Popen(command, stdout=-1, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: read(Path(f"{folder}.saved")) > before, job)
        time.sleep(draw.uniform(0, 0.25))
        ranks = [read(Path(f"{folder}.rank{rank}")) for rank in range(2)]
        os.kill(job.pid if kind == "launcher" else ranks[kind == "rank 1"], signal.SIGKILL)
        out, _ = job.communicate(timeout=120)
    finally:
        job.kill()
    assert "AssertionError" not in out, out
    wait_for(lambda: not any(alive(rank) for rank in ranks))


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for(there: object, job: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + 120
    while not there():  # type: ignore[operator]
        assert job is None or job.poll() is None, job.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.002)


def look(folder: Path) -> Counter[str]:
    """Count what may not be: a checkpoint that was said to be saved and is lost, a half one."""
    kept = CheckpointFolder(folder)
    newest = kept.newest()
    found = Counter[str]()
    found["lost"] += newest is None or kept.state(newest)["step"] < read(Path(f"{folder}.saved"))
    for place in kept.whole():
        held = kept.load(place)
        values = {float(value) for array in held.models[""].values() for value in array}
        found["half"] += values != {float(held.step)} or len(held.models[""]) != 6
    found["litter"] += len(kept.all()) > 3  # of which two stay, and one may be on its way
    return found


def kills(folder: Path, count: int, seed: int) -> Counter[str]:
    draw = random.Random(seed)
    found = Counter[str]()
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        kill_once(folder, kind, draw)
        found += look(folder)
        found[kind] += 1
        print(dict(found), flush=True)
    found["refused"] = Path(f"{folder}.refused").exists()
    return found


def check(found: Counter[str], count: int) -> None:
    assert (found["lost"], found["half"], found["litter"]) == (0, 0, 0), found
    assert sum(found[kind] for kind in KINDS) == count
    assert found["refused"], "no disk was full"


@pytest.mark.slow
def test_a_few_kills_lose_nothing(tmp_path: Path) -> None:
    check(kills(tmp_path / "runs", 4, seed=0), 4)


@pytest.mark.exhaustive
def test_many_kills_lose_nothing(tmp_path: Path) -> None:
    count = int(os.environ.get("DREAM_TEST_KILLS", "60"))
    found = kills(tmp_path / "runs", count, seed=int(os.environ.get("DREAM_TEST_SEED", "1")))
    check(found, count)
