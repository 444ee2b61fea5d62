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


class Part(nn.Module):
    """The layers of one stage of several: as many blocks as of the others."""

    def __init__(self, model: nn.Module, number: int, stages: int) -> None:
        super().__init__()
        blocks: Any = model.blocks
        each = len(blocks) // stages
        self.blocks = blocks[number * each : (number + 1) * each]
        self.head = model.head if number == stages - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x.mean(dim=1))


def raw(model: nn.Module, kind: Any) -> Callable[..., None]:
    """The step that torch's tutorial has."""
    rank, stages = distributed.get_rank(), distributed.get_world_size()
    part = Part(model, rank, stages)
    stage = PipelineStage(part, rank, stages, torch.device("cpu"))
    schedule = kind(stage, MICROBATCHES, loss_fn=F.cross_entropy)
    optimizer = AdamW(part.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == stages - 1:
            schedule.step(target=y, return_outputs=False)
        else:
            schedule.step()
        optimizer.step()

    return step


def ours(build: Callable[[], nn.Module], name: str) -> Callable[..., Any]:
    """The same stages and microbatches; every rank also gets the loss."""
    options: dict[str, Any] = {"schedule": name, "microbatches": MICROBATCHES}
    parts = distributed.get_world_size()
    cuts = [f"blocks.{4 // parts * number}" for number in range(1, parts)]
    with dream.strategy("model_parallel", stages=cuts, **options) as strategy:
        model = build()
        model, optimizer = strategy.prepare(model, AdamW(model.parameters()))
        return strategy.train_step(model, F.cross_entropy, optimizer)


KINDS = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
