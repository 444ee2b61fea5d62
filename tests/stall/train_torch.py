"""A rank that trains: FOLDER REDUCTION FATE [STEPS [SLOW]], on the command line. Leaves marks in
the folder as it goes, and waits for those of the test."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import dream
from dream.stall import watcher

FOLDER, REDUCTION, FATE = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
RANK = int(os.environ["RANK"])
SLOW = sys.argv[5] if len(sys.argv) > 5 else "own"
"""In what part of a step the last rank is slow, where its fate is to be late."""
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


def late(part: str) -> None:
    if FATE == "late" and RANK == 1 and part == SLOW:
        time.sleep(0.03)


class Model(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        late("forward")
        return super().forward(x)


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        late("input")
        return torch.ones(4)


def main() -> None:
    if FATE == "late":
        watcher._LONGEST_LOOK = 0.05
    with dream.strategy("mirrored", reduction=REDUCTION):
        model = Model(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        numbers = DataLoader(Numbers(), batch_size=4) if SLOW == "input" else [torch.ones(2, 4)]
    for step in range(int(sys.argv[4]) if len(sys.argv) > 4 else 10**9):
        for x in numbers:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        late("own")
        if step == BEGUN:
            mark(f"trains{RANK}")
            if FATE == "checkpoint" and RANK == 0:
                checkpoint("go")
            if FATE == "held" and RANK == 1:
                held()
    print("done", flush=True)


if __name__ == "__main__":
    main()
