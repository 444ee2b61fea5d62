"""A rank of `one_copy.py`: OUT CONTENDER OPTIMIZER STEPS."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from ctypes import CDLL
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from _torch_work import large_mlp
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

import dream

BATCH = 32
OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], dict[str, float], int]] = {
    "SGD": (SGD, {"lr": 0.01, "momentum": 0.9}, 1),
    "AdamW": (AdamW, {"lr": 0.001}, 2),
}
"""With the numbers of state for each parameter."""


def main() -> None:
    out, name, chosen, steps = *sys.argv[1:4], int(sys.argv[4])
    make, options, states = OPTIMIZERS[chosen]
    if name.startswith("dream"):
        with dream.strategy("mirrored", one_copy="one_copy" in name) as strategy:
            before = pss()
            model = built()
            optimizer = make(model.parameters(), **options)
            seconds = timed(strategy.train_step(model, F.cross_entropy, optimizer), steps)
            write(out, seconds, model, before, states)
        return
    distributed.init_process_group("gloo")
    before = pss()
    model = built()
    called = DistributedDataParallel(model) if name == "raw DDP" else model
    optimizer = make(model.parameters(), **options)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(called(x), y).backward()
        optimizer.step()

    write(out, timed(step, steps), model, before, states)


def built() -> nn.Module:
    torch.manual_seed(0)
    return large_mlp()


def timed(step: Callable[..., Any], steps: int) -> float:
    x, y = torch.randn(BATCH, 784), torch.randint(0, 10, (BATCH,))
    begin = 0.0
    for number in range(steps):
        if number == steps // 2:
            begin = perf_counter()
        step(x, y)
    return (perf_counter() - begin) / (steps - steps // 2)


def pss() -> int:
    """Bytes of this process, of shared ones its part; without what is free in its allocator."""
    CDLL("libc.so.6").malloc_trim(0)
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError("The system does not say how much memory a process has.")


def write(out: str, seconds: float, model: nn.Module, before: int, states: int) -> None:
    """The time of a step, and what weights and state take of all ranks, in terms of one rank's.
    A process has as many bytes as it grew by, less its gradients'; DDP's own are their buckets."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    distributed.barrier()
    grown = torch.tensor(pss() - before - weights, dtype=torch.float64)
    distributed.barrier()
    distributed.all_reduce(grown)
    if distributed.get_rank() == 0:
        Path(out).write_text(json.dumps([seconds, float(grown) / (weights * (1 + states))]))


if __name__ == "__main__":
    main()
