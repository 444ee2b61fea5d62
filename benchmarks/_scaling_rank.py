"""A rank of `scaling.py`: OUT BEGAN MODELS MESSAGES STEPS REDUCTION [INTERFACE]."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, time
from typing import Any

import torch
from _one_copy_rank import pss
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

import dream

BATCH, TIMES = 32, 9


def main() -> None:
    out, began, models, messages, steps, reduction, *interface = sys.argv[1:]
    with dream.strategy("mirrored", reduction=reduction) as strategy:
        found: dict[str, Any] = {"started": time() - float(began), "models": {}, "messages": {}}
        for size in filter(None, models.split(",")):
            found["models"][size] = together(strategy, int(size), int(steps), interface)
        for size in filter(None, messages.split(",")):
            found["messages"][size] = reduced(strategy.communicator, int(size))
        memory = strategy.communicator.all_gather_object(pss() / 1e6)
        found["memory"] = sum(memory) / len(memory)
        rank = strategy.topology.rank
        strategy.communicator.barrier()
    for size, figures in found["models"].items():
        figures["alone"] = alone(int(size), int(steps))
    if rank == 0:
        Path(out).write_text(json.dumps(found))


def together(strategy: Any, size: int, steps: int, interface: list[str]) -> dict[str, float]:
    """Seconds of a step, and the bytes that this host sent for one."""
    model, x, y = work(size)
    step = strategy.train_step(model, F.cross_entropy, SGD(model.parameters(), lr=0.01))
    sent = Path("/sys/class/net", *interface, "statistics/tx_bytes") if interface else None
    read: list[int] = []

    def look() -> None:
        read.append(0 if sent is None else int(sent.read_text()))

    seconds = timed(lambda: step(x, y), steps, look)
    look()
    parameters = sum(p.numel() for p in model.parameters())
    return {"parameters": parameters, "step": seconds, "sent": (read[1] - read[0]) / steps}


def alone(size: int, steps: int) -> float:
    """Seconds of a step of ranks that tell each other nothing, all at the same time."""
    model, x, y = work(size)
    optimizer = SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return timed(step, steps)


def work(size: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """An MLP of about so many parameters, and the batch that every rank computes."""
    torch.manual_seed(0)
    wide = round(((75**2 + 4 * size) ** 0.5 - 75) / 2)
    inner = nn.Sequential(nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU())
    model = nn.Sequential(inner, nn.Linear(wide, 10))
    return model, torch.randn(BATCH, 64), torch.arange(BATCH) % 10


def timed(step: Callable[[], object], steps: int, begin: Callable[[], None] | None = None) -> float:
    """The median over so many, after three that warm up."""
    for _ in range(3):
        step()
    if begin is not None:
        begin()
    taken = []
    for _ in range(steps):
        at = perf_counter()
        step()
        taken.append(perf_counter() - at)
    return median(taken)


def reduced(ranks: Any, size: int) -> float:
    """Seconds of an all-reduce of so many bytes, in place."""
    x = torch.zeros(size // 4)
    return timed(lambda: ranks.all_reduce(x, "sum", out=x), TIMES, ranks.barrier)


if __name__ == "__main__":
    main()
