"""Ranks in endless reductions, one of which ends at a random moment: TRIALS SEED, on the command
line. Prints a line of JSON for each trial: what the others were told."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dream.shared_memory import Group, Row, memory
from dream.shared_memory.library import library

STALL, NEVER = 5.0, 600.0
"""Seconds that ranks wait for one that is stopped, and for one that ends: of an end they are told,
however long they would wait."""

FATES = ("killed", "exits", "stopped", "closes")
LIMIT = 100.0
TOGETHER = 20
LIVING = os.pipe()
"""Whoever holds its other end waits for this process's end."""


Work = tuple[Callable[[], None], np.ndarray]
"""A reduction, and what it reduces in place."""


@dataclass(frozen=True)
class Part:
    """What a rank has to do. ends: after so many seconds by itself. child: leave one, as a data
    loader's worker would be, that outlives it. stall: seconds. there: buffers lie in memory of
    all."""

    elements: int
    fate: str = ""
    ends: float | None = None
    child: bool = False
    stall: float = NEVER
    there: bool = False


@dataclass(frozen=True)
class Trial:
    """Ranks, of which one has come to its end. readers: what the ranks write on."""

    fate: str
    victim: int
    children: list[int]
    readers: list[int]

    def told(self) -> dict[str, Any]:
        """What the others said; whatever is left of the ranks is ended."""
        size = len(self.children)
        texts = [_read(self.readers[rank]) for rank in range(size) if rank != self.victim]
        for child in self.children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for reader in self.readers:
            os.close(reader)
        return {"fate": self.fate, "size": size, "victim": self.victim, "said": sorted(set(texts))}


def begin(draw: random.Random) -> Trial:
    size, fate = draw.choice((2, 2, 3, 4)), draw.choice(FATES)
    victim, moment = draw.randrange(size), draw.uniform(0.0, 0.05)
    elements = draw.choice((100, 20_000, 300_000, 2_000_000))
    made = memory.make(size, library()["bytes"])
    pipes = [os.pipe() for _ in range(size)]
    own = moment if fate in ("exits", "closes") else None
    stall = STALL if fate == "stopped" else NEVER
    there = draw.random() < 0.5
    parts = [Part(elements, stall=stall, there=there)] * size
    parts[victim] = Part(elements, fate, own, draw.random() < 0.3, stall, there)
    children = [_fork(made, size, rank, parts[rank], pipes[rank][1]) for rank in range(size)]
    os.close(made.fd)
    for _, writing in pipes:
        os.close(writing)
    readers = [reading for reading, _ in pipes]
    for reader in readers:
        assert os.read(reader, 1) == b"!"
    if own is None:
        time.sleep(moment)
        os.kill(children[victim], signal.SIGKILL if fate == "killed" else signal.SIGSTOP)
    return Trial(fate, victim, children, readers)


def _fork(made: memory.Made, size: int, rank: int, part: Part, pipe: int) -> int:
    if child := os.fork():
        return child
    try:
        fd = os.open(f"/proc/self/fd/{made.fd}", os.O_RDWR)
        os.close(made.fd)
        group = Group(fd, range(size), rank, slot=made.slot, spin=size == 2, seconds=part.stall)
        if part.child and not os.fork():
            os.close(LIVING[1])
            os.read(LIVING[0], 1)
            os._exit(0)
        os.write(pipe, b"!")
        os.write(pipe, _endless(group, part).encode())
    finally:
        os._exit(0)
    return 0


def _endless(group: Group, part: Part) -> str:
    begin = time.monotonic()
    try:
        reduce, x = _there(group, part.elements) if part.there else _here(group, part.elements)
        while True:
            reduce()
            assert x[0] == x[-1] == 1.0
            if part.ends is not None and time.monotonic() - begin > part.ends:
                if part.fate == "closes":
                    group.close()
                os._exit(0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _here(group: Group, count: int) -> Work:
    x = np.ones(count, np.float32)
    at = x.ctypes.data
    return partial(group.all_reduce, at, at, count, "float32", "mean"), x


def _there(group: Group, count: int) -> Work:
    row = Row(group, 4 * count)
    x = np.frombuffer(row.memory, np.float32, count, row.offset)
    x[:] = 1.0
    begin, stride = row.begin, row.stride
    return partial(group.reduce_there, begin, stride, count, "float32", "mean", everywhere=True), x


def _read(pipe: int) -> str:
    """What a survivor said; it has LIMIT seconds."""
    ready, _, _ = select.select([pipe], [], [], LIMIT)
    return os.read(pipe, 1 << 16).decode() if ready else "nothing"


def main() -> None:
    """Those of one turn wait at the same time."""
    draw = random.Random(int(sys.argv[2]))
    trials = int(sys.argv[1])
    for start in range(0, trials, TOGETHER):
        waiting = []
        for _ in range(start, min(start + TOGETHER, trials)):
            trial = begin(draw)
            if trial.fate == "stopped":
                waiting.append(trial)
            else:
                print(json.dumps(trial.told()), flush=True)
        for trial in waiting:
            print(json.dumps(trial.told()), flush=True)


if __name__ == "__main__":
    main()
