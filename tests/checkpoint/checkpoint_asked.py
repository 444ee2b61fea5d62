"""Asks one rank of jobs to leave while no step ends, and counts the jobs that leave as they should.

    python tests/checkpoint/checkpoint_asked.py TALLY COUNT [SEED]

goes on with the jobs that TALLY, a file of a line a job, has not yet; each is drawn by its number
and the seed alone. Every tenth is started again, and its weights at the end are looked at. The
lines, summed, are printed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dream.launch.forks.forked import SERVER, serving

SCRIPTS = Path(__file__).with_name("asked")
KINDS = ("torch", "keras")
STATES = ("evaluation", "compilation", "tracing", "loader", "sleep", "end")
HOW = ("SIGTERM", "SIGUSR1", "Slurm's time")
SECONDS = 150.0
Weights = dict[str, Any]


def command(kind: str, folder: Path) -> list[str]:
    options = ["-n", "2", "--checkpoint", str(folder / "kept"), "--every", "600"]
    script = [str(SCRIPTS / f"{kind}_script.py"), str(folder / "out.json")]
    return [sys.executable, "-m", "dream", "run", *options, *script]


def trained(kind: str, folder: Path) -> Weights:
    """Run a job to its end, and return the weights that it ends with."""
    ran = subprocess.run(
        command(kind, folder), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stderr
    told: Weights = json.loads((folder / "out.json").read_text())
    return told


def difference(one: Weights, other: Weights) -> float:
    return float(max(np.abs(np.subtract(one[name], other[name])).max() for name in other))


def asked(
    kind: str, state: str, how: str, drawn: random.Random, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Ask one rank in a state, and return how the job ended."""
    mark = folder / "mark"
    told = {**os.environ, "DREAM_TEST_STATE": state, "DREAM_TEST_MARK": str(mark)}
    if how == "Slurm's time":
        told["DREAM_TEST_LIMIT"] = "10"
    arguments = command(kind, folder)
    with subprocess.Popen(arguments, stdout=-1, stderr=-1, text=True, env=told) as job:
        try:
            if how != "Slurm's time":
                process = _pid_at(mark, drawn.randrange(2))
                time.sleep(drawn.uniform(0.0, 1.0))
                os.kill(process, getattr(signal, how))
            out, said = job.communicate(timeout=SECONDS)
        finally:
            job.kill()
    return subprocess.CompletedProcess(arguments, job.returncode, out, said)


def left(job: subprocess.CompletedProcess[str]) -> bool:
    """Whether all ranks saved and left together."""
    return job.returncode == 85 and "has saved and left" in job.stderr


def _pid_at(mark: Path, rank: int) -> int:
    """Return the process of a rank once it is in its long state."""
    file, end = mark.with_name(f"{mark.name}.{rank}"), time.monotonic() + SECONDS
    while time.monotonic() < end:
        if file.exists() and (said := file.read_text()):
            return int(said)
        time.sleep(0.01)
    raise AssertionError(f"rank {rank} has not come to its state")


@cache
def _undisturbed(kind: str) -> Weights:
    with tempfile.TemporaryDirectory() as folder:
        return trained(kind, Path(folder))


def _one(number: int, seed: str) -> Mapping[str, Any]:
    drawn = random.Random(f"{seed} {number}")
    kind, how = "keras" if number % 4 == 3 else "torch", drawn.choice(HOW)
    state = drawn.choice(STATES)
    found: dict[str, Any] = {"asked": f"{kind}, {state}, {how}", "left": False, "wrong": ""}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            job = asked(kind, state, how, drawn, folder)
            found["left"] = left(job)
            if not left(job):
                found["wrong"] = f"{job.returncode}: {job.stderr}"
            elif number % 10 == 0:
                found["again"] = difference(trained(kind, folder), _undisturbed(kind))
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            found["wrong"] = f"{type(error).__name__}: {error}"
    return found


def main(tally: str, count: str, seed: str = "1") -> None:
    file = Path(tally)
    done = file.read_text().splitlines() if file.exists() else []
    with serving() as server:
        os.environ[SERVER] = server
        for number in range(len(done), int(count)):
            line = json.dumps(_one(number, seed))
            done.append(line)
            with file.open("a") as out:
                out.write(f"{line}\n")
    lines = [json.loads(line) for line in done]
    print(Counter("left" if line["left"] else "not left" for line in lines))
    print(Counter(line["asked"].split(", ")[0] for line in lines))
    again = [line["again"] for line in lines if "again" in line]
    print(f"started again: {len(again)}, largest difference {max(again, default=0.0)}")
    print(*(f"{line['asked']}: {line['wrong']}" for line in lines if line["wrong"]), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
