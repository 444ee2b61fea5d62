"""Jobs whose ranks and hosts die, leave and join as they train, held to one that nobody disturbs.

    python tests/checkpoint/memberships.py TALLY COUNT [SEED]

goes on with the jobs that TALLY, a file of a line a job, has not yet; each is drawn by its number
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
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import netns
from launch_scripts import free_port
from netns import DREAM, Host

from dream.launch.forks.forked import SERVER, serving

FRAMEWORKS = ("torch", "tensorflow")
WAYS = ("ranks", "hosts", "ranks", "namespaces")
SCRIPTS = {"torch": "membership_torch.py", "tensorflow": "membership_keras.py"}
SECONDS = 240.0
MOST, SAMPLES, EPOCHS = 3, 61, 8


class Membership:
    """A job of three ranks on one host, or of one on each of three, that is disturbed until it
    ends. changes: how often ranks or hosts died, left or joined."""

    def __init__(self, framework: str, folder: Path, draw: random.Random) -> None:
        folder.mkdir()
        self.folder, self.out = folder, folder / "end.json"
        self.changes = Counter[str]()
        self._framework, self._draw = framework, draw
        self._launchers: dict[int, subprocess.Popen[bytes]] = {}
        self._left: list[subprocess.Popen[bytes]] = []
        self._hosts: Sequence[Host] = ()
        self._port = free_port()

    def undisturbed(self) -> Path:
        with ExitStack() as held:
            held.callback(self._end)
            self._start(["-n", "1"], 0, "0")
            self._wait()
        return self.out

    def ranks(self) -> None:
        """One host, whose ranks die, one or two at once, and come back by themselves."""
        with ExitStack() as held:
            held.callback(self._end)
            self._start(["-n", f"1:{MOST}", "--grow-after", "1"], 0, "0.15")
            for _ in range(self._draw.randint(2, 4)):
                alive = self._alive_later(2)
                if not alive:
                    break
                self._sleep(0.8)
                for process in self._draw.sample(alive, self._draw.randint(1, len(alive) - 1)):
                    self._kill(process)
                    self.changes["die"] += 1
            self._wait()
        self.changes["join"] += (self.folder / "said0").read_text().count("with all 3 ranks")

    def hosts(self, made: Sequence[Host] = ()) -> None:
        """Three hosts, of which two die, leave and join, once or both at one time. made: network
        namespaces; else they are launchers of this machine."""
        self._hosts = made
        with ExitStack() as held:
            held.callback(self._end)
            self._host(0)
            for _ in range(self._draw.randint(2, 4)):
                self._alive_later(1)
                self._sleep(1.0)
                if self.out.exists():
                    break
                for node in self._draw.sample((1, 2), self._draw.randint(1, 2)):
                    self._change(node)
                self._sleep(2.0)
            while not self.out.exists() and self._launchers[0].poll() is None:
                time.sleep(0.02)
            for node in [node for node in self._launchers if node]:
                self._launchers.pop(node).kill()  # it may have come too late
            self._wait()

    def _change(self, node: int) -> None:
        if node not in self._launchers:
            self._host(node)
            self.changes["join"] += 1
        elif self._draw.random() < 0.5:
            launcher = self._launchers.pop(node)
            if self._hosts:
                self._hosts[node].kill()
            launcher.kill()
            launcher.wait()
            self.changes["die"] += 1
        else:
            self._left.append(self._launchers.pop(node))
            self._left[-1].terminate()
            self.changes["leave"] += 1

    def _host(self, node: int) -> None:
        first = self._hosts[0].address if self._hosts else "127.0.0.1"
        place = ["--nnodes", f"1:{MOST}", "--node-rank", str(node), "--master-addr", first]
        place += ["--master-port", str(self._port), "--node-timeout", "5"]
        self._start(["-n", "1", *place], node, "0.3")

    def _start(self, options: list[str], node: int, seconds: str) -> None:
        given = ["--checkpoint", str(self.folder / "kept"), "--every", "0.01"]
        given += ["--framework", self._framework, *options]
        script = str(Path(__file__).with_name(SCRIPTS[self._framework]))
        command = [*DREAM, "run", *given, script, str(self.out), seconds]
        env = {**os.environ, "DREAM_TOKEN": "a" * 16, "HOSTS_FILE": ""}
        if self._hosts:
            command = self._hosts[node].command(*command)
        with (self.folder / f"said{node}").open("ab") as said:
            job = subprocess.Popen(command, stdout=said, stderr=said, env=env)
        self._launchers[node] = job

    def _alive_later(self, least: int) -> list[int]:
        """Return the ranks' processes once so many train, one step on from now; fewer at the
        end."""
        end, first = time.monotonic() + SECONDS, self._step()
        while time.monotonic() < end and not self.out.exists():
            found = [process for _, process in self._told() if Path(f"/proc/{process}").exists()]
            if len(found) >= least and self._step() > first:
                return found
            assert self._launchers[0].poll() is None, self.said()
            time.sleep(0.01)
        assert self.out.exists(), f"it hangs: {self.said()}"
        return []

    def _told(self) -> list[tuple[int, int]]:
        words = [path.read_text().split() for path in self.folder.glob("end.json.step.*")]
        return [(int(word[0]), int(word[1])) for word in words if len(word) == 2]

    def _step(self) -> int:
        return max((step for step, _ in self._told()), default=0)

    def _sleep(self, most: float) -> None:
        time.sleep(self._draw.uniform(0, most))

    def _kill(self, process: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)

    def _wait(self) -> None:
        """Wait for the end of host 0's launcher, which must be a good one."""
        assert self._launchers[0].wait(SECONDS) == 0, self.said()
        codes = {launcher.wait(SECONDS) for launcher in self._left}
        assert codes <= {0, 85, 128 + 15, -15}, (codes, self.said())

    def _end(self) -> None:
        for launcher in (*self._launchers.values(), *self._left):
            launcher.kill()
            launcher.wait()

    def said(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("said*")))


def gap(out: Path, whole: Path) -> float:
    """Return by how much the weights differ at most."""
    one, other = (json.loads(path.read_text()) for path in (out, whole))
    assert one.keys() == other.keys()
    return max(float(np.abs(np.subtract(one[name], other[name])).max()) for name in one)


def wrong_epochs(out: Path) -> int:
    """Count the passes of which a sample was left out, or was in two steps. A step that is done
    again is done with the same ones."""
    steps: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for line in Path(f"{out}.samples").read_text().splitlines():
        epoch, step, which = json.loads(line)
        steps[epoch][step] |= {*which}
    wrong = EPOCHS - len(steps)
    for of_step in steps.values():
        dealt = Counter(sample for samples in of_step.values() for sample in samples)
        wrong += dealt != Counter(range(SAMPLES))
    return wrong


def changed(folder: Path, numbers: Sequence[int], seed: int, tell: Callable[[str], object]) -> None:
    """Run those jobs, and tell a line of each."""
    wholes: dict[str, Path] = {}
    for number in numbers:
        framework, way = FRAMEWORKS[number % 2], WAYS[number // 2 % len(WAYS)]
        draw = random.Random(f"{seed} {number}")
        if framework not in wholes:
            wholes[framework] = Membership(framework, folder / framework, draw).undisturbed()
        job, begin = Membership(framework, folder / str(number), draw), time.monotonic()
        with ExitStack() as held:
            if way == "ranks":
                job.ranks()
            else:
                job.hosts(held.enter_context(netns.hosts(3)) if way == "namespaces" else ())
        found = {
            "number": number, "seed": seed, "framework": framework, "way": way,
            "seconds": round(time.monotonic() - begin, 1), "gap": gap(job.out, wholes[framework]),
            "wrong epochs": wrong_epochs(job.out), **job.changes,
        }  # fmt: skip
        tell(json.dumps(found))


def summed(lines: Sequence[str]) -> dict[str, float]:
    """Return how many changes of each kind there were, and the most that was wrong."""
    told = [json.loads(line) for line in lines]
    total = Counter[str]()
    for each in told:
        for kind in ("die", "leave", "join"):
            total[kind] += each.get(kind, 0)
            total["changes"] += each.get(kind, 0)
            total[f"changes, {each['framework']}"] += each.get(kind, 0)
        total["wrong epochs"] += each["wrong epochs"]
    return {"jobs": len(told), **total, "gap": max((each["gap"] for each in told), default=0.0)}


def main(tally: str, count: str, seed: str = "1") -> None:
    file = Path(tally)
    done = file.read_text().splitlines() if file.exists() else []
    numbers = sorted({*range(int(count))} - {json.loads(line)["number"] for line in done})
    with file.open("a") as out, tempfile.TemporaryDirectory() as folder, serving() as server:
        os.environ[SERVER] = server
        os.environ["OMP_NUM_THREADS"] = "1"
        changed(Path(folder), numbers, int(seed), partial(print, file=out, flush=True))
    print(summed(file.read_text().splitlines()))


if __name__ == "__main__":
    main(*sys.argv[1:])
