"""Ranks of `dream run` that train, of which the last stands still between steps, once for each
fate: FOLDER REDUCTION FATE..., on the command line. It leaves a mark as each begins, and goes on at
the test's."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, Dataset
from where_fates import FATES, FOLDER, stand

import dream

REDUCTION, MINE = sys.argv[2], sys.argv[3:]
RANK = int(os.environ["RANK"])
STANDS = int(os.environ["WORLD_SIZE"]) - 1 == RANK
fate = ""


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        if fate == "loader":
            stand("loader")
        return torch.ones(4)


class Model(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if fate == "forward":
            stand("forward")
        return super().forward(x)


class SlowToWrite:
    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        stand("disk")
        return int, (1,)


def disk() -> None:
    torch.save({"slow": SlowToWrite()}, FOLDER / f"saved{RANK}.pt")


def held() -> None:
    """Read, in C, what the test writes, and keep the interpreter meanwhile."""
    os.mkfifo(FOLDER / "pipe")
    pipe = os.open(FOLDER / "pipe", os.O_RDWR)
    (FOLDER / "held").touch()
    ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)


def compiling() -> None:
    def backend(module: Callable[..., object], _: object) -> Callable[..., object]:
        stand("compiling")
        return module

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))


def branch() -> None:
    """Call what the other rank does not."""
    (FOLDER / "branch").touch()
    current.communicator.barrier()


BETWEEN_STEPS = FATES | {"disk": disk, "held": held, "compiling": compiling}


def main() -> None:
    global fate, current
    with dream.strategy("mirrored", reduction=REDUCTION) as current:
        model = Model(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = DataLoader(Numbers(), batch_size=4)
        for step, mine in enumerate(("", *MINE, "")):
            fate = mine if STANDS else ""
            if fate in BETWEEN_STEPS:
                BETWEEN_STEPS[fate]()
            for x in loader:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                if fate == "branch":
                    branch()
                loss.backward()
                if fate == "behind":
                    stand("behind")
                optimizer.step()
            del step
    print("done", flush=True)


current: dream.Strategy
if __name__ == "__main__":
    main()
