"""Ranks in endless reductions, one of which ends at a random moment: TRIALS SEED, on the command
line. Prints a line of JSON for each trial: what the others were told, and how soon."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from dream.shared_memory import Group, memory
from dream.shared_memory.library import library

STALL = 0.6
FATES = ("killed", "exits", "stopped", "closes")
LIMIT = 10.0


@dataclass(frozen=True)
class Part:
    """What a rank has to do. ends: after so many seconds by itself. child: leave one, as a data
    loader's worker would be, that outlives it."""

    elements: int
    fate: str = ""
    ends: float | None = None
    child: bool = False


def trial(draw: random.Random) -> dict[str, Any]:
    size, fate = draw.choice((2, 2, 3, 4)), draw.choice(FATES)
    victim, moment = draw.randrange(size), draw.uniform(0.0, 0.05)
    elements = draw.choice((100, 20_000, 300_000, 2_000_000))
    made = memory.make(size, library()["bytes"])
    pipes = [os.pipe() for _ in range(size)]
    own = moment if fate in ("exits", "closes") else None
    parts = [Part(elements)] * size
    parts[victim] = Part(elements, fate, own, draw.random() < 0.3)
    children = [_fork(made, size, rank, parts[rank], pipes[rank][1]) for rank in range(size)]
    os.close(made.fd)
    for _, writing in pipes:
        os.close(writing)
    readers = [reading for reading, _ in pipes]
    for reader in readers:
        assert os.read(reader, 1) == b"!"
    begin = time.monotonic()
    if own is None:
        time.sleep(moment)
        begin = time.monotonic()
        os.kill(children[victim], signal.SIGKILL if fate == "killed" else signal.SIGSTOP)
    told = {rank: _read(readers[rank]) for rank in range(size) if rank != victim}
    os.kill(children[victim], signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
    for reader in readers:
        os.close(reader)
    found = {rank: json.loads(text) for rank, text in told.items()}
    late = max(one["at"] for one in found.values()) - begin - (own or 0.0)
    said = sorted({one["said"] for one in found.values()})
    return {"fate": fate, "size": size, "victim": victim, "said": said, "seconds": late}


def _fork(made: memory.Made, size: int, rank: int, part: Part, pipe: int) -> int:
    if child := os.fork():
        return child
    try:
        fd = os.open(f"/proc/self/fd/{made.fd}", os.O_RDWR)
        os.close(made.fd)
        group = Group(fd, range(size), rank, slot=made.slot, spin=size == 2, seconds=STALL)
        if part.child and not os.fork():
            time.sleep(2.0)
            os._exit(0)
        os.write(pipe, b"!")
        said = _endless(group, part)
        os.write(pipe, json.dumps({"said": said, "at": time.monotonic()}).encode())
    finally:
        os._exit(0)
    return 0


def _endless(group: Group, part: Part) -> str:
    x = np.ones(part.elements, np.float32)
    begin = time.monotonic()
    try:
        while True:
            group.all_reduce(x.ctypes.data, x.ctypes.data, x.size, "float32", "mean")
            assert x[0] == x[-1] == 1.0
            if part.ends is not None and time.monotonic() - begin > part.ends:
                if part.fate == "closes":
                    group.close()
                os._exit(0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _read(pipe: int) -> bytes:
    """What a survivor said; it has LIMIT seconds."""
    ready, _, _ = select.select([pipe], [], [], LIMIT)
    return os.read(pipe, 1 << 16) if ready else b'{"said": "nothing", "at": 1e9}'


def main() -> None:
    draw = random.Random(int(sys.argv[2]))
    for _ in range(int(sys.argv[1])):
        print(json.dumps(trial(draw)), flush=True)


if __name__ == "__main__":
    main()
