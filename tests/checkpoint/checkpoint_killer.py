"""Kills jobs at random moments of saves, and looks at what is left.

    python tests/checkpoint/checkpoint_killer.py TALLY COUNT [SEED]

goes on with the kills that TALLY, a file of a line a kill, has not yet; each is drawn by its number
and the seed alone. The file's lines, summed, are printed.
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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import netns
from netns import DREAM

from dream.checkpoint import CheckpointFolder
from dream.launch.forks.forked import SERVER, serving

KINDS = ("rank 0", "rank 1", "writer", "launcher", "host", "full disk")
FORBIDDEN = ("lost", "half", "litter", "wrong")
SCRIPT = str(Path(__file__).with_name("checkpoint_kills.py"))
SECONDS = 120.0


class Killing:
    """A folder of checkpoints, and jobs that are killed as they write there."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder, self._draw = folder, draw

    def once(self, kind: str) -> Counter[str]:
        """Start a job that goes on from what is there, kill it, and count what may not be."""
        found = Counter[str]()
        Path(f"{self.folder}.refused").unlink(missing_ok=True)
        with ExitStack() as held:
            if kind == "host":
                self._host(held)
            else:
                found["restarted"] = self._here(kind, held)
        said = Path(f"{self.folder}.out").read_text()
        found["wrong"] = "AssertionError" in said
        if found["wrong"]:
            print(said)
        found["refused"] = self._read("refused") > 0
        return found + look(self.folder)

    def _here(self, kind: str, held: ExitStack) -> bool:
        """Kill a job of this machine. One that lost a rank starts again, once, and is killed."""
        again, restarted = kind in ("rank 0", "rank 1", "writer"), False
        more = ["--checkpoint", str(self.folder), "--max-restarts", "1"] if again else []
        full = str(self._draw.randrange(1, 5)) if kind == "full disk" else "0"
        command = ["run", "-n", "2", "--framework", "torch", *more, SCRIPT, str(self.folder), full]
        job = self._started([*DREAM, *command], held)
        ranks = self._kill(kind, job)
        if again:
            until(lambda: self._ranks() != ranks or job.poll() is not None)
            if job.poll() is None:
                restarted = True
                ranks = [new or old for new, old in zip(self._ranks(), ranks, strict=True)]
                self._kill(kind, job)
        job.wait(SECONDS)
        until(lambda: not any(alive(rank) for rank in self._ranks()))
        return restarted

    def _kill(self, kind: str, job: subprocess.Popen[bytes]) -> list[int]:
        """Wait for a save, and at a random moment after it kill."""
        before, waited = self._read("saved"), "refused" if kind == "full disk" else "saved"
        before = before if waited == "saved" else 0
        until(lambda: self._read(waited) > before or job.poll() is not None)
        time.sleep(self._draw.uniform(0, 0.1))
        ranks, victim = self._ranks(), job.pid
        if kind == "writer":
            until(lambda: self._half_written() or job.poll() is not None)
        if kind != "launcher":
            victim = ranks[kind == "rank 1" or (kind == "writer" and self._draw.random() < 0.5)]
        if job.poll() is None:
            kill(victim)
        return ranks

    def _host(self, held: ExitStack) -> None:
        """Kill all that runs on one of two hosts, and the other one soon after."""
        pair = held.enter_context(netns.hosts(2))
        for node, host in enumerate(pair):
            place = ["--nnodes", "2", "--node-rank", str(node), "--master-addr", pair[0].address]
            command = ["run", "-n", "1", *place, SCRIPT, str(self.folder), "0"]
            told = {"DREAM_TOKEN": "a" * 16, "HOSTS_FILE": ""}
            self._started(host.command(*DREAM, *command), held, told)
        before = self._read("saved")
        until(lambda: self._read("saved") > before)
        time.sleep(self._draw.uniform(0, 0.1))
        self._draw.shuffle(pair)
        pair[0].link("down")
        pair[0].kill()
        time.sleep(self._draw.uniform(0, 0.5))
        pair[1].kill()

    def _started(
        self, command: Sequence[str], held: ExitStack, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with Path(f"{self.folder}.out").open("ab") as out:
            told = {**os.environ, **(env or {})}
            job = subprocess.Popen(command, stdout=out, stderr=out, env=told)
        held.callback(job.wait, SECONDS)
        held.callback(job.kill)
        return job

    def _half_written(self) -> bool:
        parts = self.folder.glob(".part-*/*.safetensors")
        return any(part.exists() for part in parts)

    def _ranks(self) -> list[int]:
        return [self._read(f"rank{rank}") for rank in range(2)]

    def _read(self, name: str) -> int:
        path = Path(f"{self.folder}.{name}")
        return int(path.read_text()) if path.exists() else 0


def look(folder: Path) -> Counter[str]:
    """Count what may not be: a checkpoint that was said to be saved and is lost, a half one."""
    kept, said = CheckpointFolder(folder), Path(f"{folder}.saved")
    newest, found = kept.newest(), Counter[str]()
    found["lost"] += newest is None or kept.state(newest)["step"] < int(said.read_text())
    for place in kept.whole():
        held = kept.load(place)
        values = {float(value) for array in held.models[""].values() for value in array}
        found["half"] += values != {float(held.step)} or len(held.models[""]) != 6
    found["litter"] += len(kept.all()) > 3  # of which two stay, and one may be on its way
    return found


def kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not there():
        assert time.monotonic() < end, "it hangs"
        time.sleep(0.002)


def kills(folder: Path, numbers: Sequence[int], seed: int, tell: Callable[[str], object]) -> None:
    """Do those kills, and tell a line of each."""
    for number in numbers:
        draw = random.Random(f"{seed} {number}")
        kind = KINDS[number % len(KINDS)]
        Path(f"{folder}.out").unlink(missing_ok=True)
        found = Killing(folder, draw).once(kind)
        count = 2 if found.pop("restarted", 0) else 1
        tell(json.dumps({"number": number, "seed": seed, "kind": kind, "kills": count, **found}))


def summed(lines: Sequence[str]) -> Counter[str]:
    """Return how many kills of each kind there were, and what was found that may not be."""
    total = Counter[str]()
    for told in map(json.loads, lines):
        total[told["kind"]] += told["kills"]
        total["kills"] += told["kills"]
        total.update({name: int(told.get(name, 0)) for name in (*FORBIDDEN, "refused")})
    return total


def main(tally: str, count: str, seed: str = "1") -> None:
    file = Path(tally)
    done = file.read_text().splitlines() if file.exists() else []
    numbers = sorted({*range(int(count))} - {json.loads(line)["number"] for line in done})
    with file.open("a") as out, tempfile.TemporaryDirectory() as folder, serving() as server:
        os.environ[SERVER] = server
        os.environ["OMP_NUM_THREADS"] = "1"
        kills(Path(folder, "runs"), numbers, int(seed), partial(print, file=out, flush=True))
    print(dict(summed(file.read_text().splitlines())))


if __name__ == "__main__":
    main(*sys.argv[1:])
