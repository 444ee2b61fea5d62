"""Who trains in stages: torch's own pipelining, cut by hand, and dream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F
from torch.optim import AdamW

import dream

MICROBATCHES = 4


class Half(nn.Module):
    """The layers of one of two stages."""

    def __init__(self, model: nn.Module, *, first: bool) -> None:
        super().__init__()
        blocks: Any = model.blocks
        self.blocks = blocks[:2] if first else blocks[2:]
        self.head = None if first else model.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x.mean(dim=1))


def raw(model: nn.Module, kind: Any) -> Callable[..., None]:
    """The step that torch's tutorial has."""
    rank = distributed.get_rank()
    half = Half(model, first=rank == 0)
    stage = PipelineStage(half, rank, 2, torch.device("cpu"))
    schedule = kind(stage, MICROBATCHES, loss_fn=F.cross_entropy)
    optimizer = AdamW(half.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, return_outputs=False)
        optimizer.step()

    return step


def ours(build: Callable[[], nn.Module], name: str) -> Callable[..., Any]:
    """The same stages and microbatches; every rank also gets the loss."""
    options: dict[str, Any] = {"schedule": name, "microbatches": MICROBATCHES}
    with dream.strategy("model_parallel", stages=["blocks.2"], **options) as strategy:
        model = build()
        model, optimizer = strategy.prepare(model, AdamW(model.parameters()))
        return strategy.train_step(model, F.cross_entropy, optimizer)


KINDS = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
