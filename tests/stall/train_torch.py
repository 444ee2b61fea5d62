"""A rank that trains: FOLDER REDUCTION FATE [STEPS], on the command line. Leaves marks in the
folder as it goes, and waits for those of the test."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

import dream
from dream.stall import watcher

FOLDER, REDUCTION, FATE = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
RANK = int(os.environ["RANK"])
BEGUN = 3


def mark(name: str) -> None:
    (FOLDER / name).touch()


def checkpoint(until: str) -> None:
    """What one rank does alone, until the test says that it is over."""
    mark("checkpoint")
    while not (FOLDER / until).exists():
        time.sleep(0.05)


def held() -> None:
    """A call into C that does not let go of the interpreter."""
    mark("held")
    sum(range(10**12))


def main() -> None:
    if FATE == "late":
        watcher._LONGEST_LOOK = 0.05
    with dream.strategy("mirrored", reduction=REDUCTION):
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(int(sys.argv[4]) if len(sys.argv) > 4 else 10**9):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        if FATE == "late" and RANK == 1:
            time.sleep(0.03)
        if step == BEGUN:
            mark(f"trains{RANK}")
            if FATE == "checkpoint" and RANK == 0:
                checkpoint("go")
            if FATE == "held" and RANK == 1:
                held()
    print("done", flush=True)


if __name__ == "__main__":
    main()
