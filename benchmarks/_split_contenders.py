"""Who trains a split model: torch's own parts, put together by hand, and dream.

A contender is made by a function `Model -> Contender`; both read the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import _pipeline_contenders as pipelines
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer

import dream

WIDTH, HEADS, TIME, CLASSES, BATCH = 256, 8, 32, 10, 16


class Attention(nn.Module):
    """By hand. heads: those that this rank computes; all, unless it is told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.heads = HEADS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape

        def apart(z: torch.Tensor) -> torch.Tensor:
            return z.view(batch, time, self.heads, WIDTH // HEADS).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(
            apart(self.query(x)), apart(self.key(x)), apart(self.value(x))
        )
        return self.out(mixed.transpose(1, 2).flatten(2))


class Mix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, *, attention: bool) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), Mix()
        self.attend = Attention() if attention else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.attend is not None:
            x = x + self.attend(x)
        return x + self.mix(self.norm(x))


class Model(nn.Module):
    """Four blocks of 0.5M parameters, or of 0.8M with attention."""

    def __init__(self, *, attention: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(attention=attention) for _ in range(4))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


@dataclass(frozen=True, slots=True)
class Contender:
    """batch: this rank's. step: trains on it."""

    batch: tuple[torch.Tensor, torch.Tensor]
    step: Callable[..., Any]

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step(*self.batch)


Make = Callable[[bool], Contender]


def raw_fsdp(attention: bool) -> Contender:
    model = Model(attention=attention)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return Contender(_share(), _loop(model, AdamW(model.parameters())))


def dream_fsdp(attention: bool) -> Contender:
    with dream.strategy("sharded"):
        model = Model(attention=attention)
        return Contender(_share(), _loop(model, AdamW(model.parameters())))


def dream_fsdp_step(attention: bool) -> Contender:
    with dream.strategy("sharded") as strategy:
        model = Model(attention=attention)
        optimizer = AdamW(model.parameters())
        return Contender(_share(), strategy.train_step(model, F.cross_entropy, optimizer))


def raw_tensor(attention: bool) -> Contender:
    """What torch's own tutorial does: pieces in between are ordinary tensors, and the attention is
    told how many heads it has."""
    model = Model(attention=attention)
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in model.blocks:
        plan: dict[str, Any] = {"mix.up": ColwiseParallel(), "mix.down": RowwiseParallel()}
        if attention:
            plan |= {f"attend.{name}": ColwiseParallel() for name in ("query", "key", "value")}
            plan["attend.out"] = RowwiseParallel()
            block.attend.heads //= distributed.get_world_size()
        parallelize_module(block, mesh, plan)
    return Contender(_whole(), _loop(model, AdamW(model.parameters())))


def dream_tensor(attention: bool) -> Contender:
    with dream.strategy("model_parallel", split="tensor"):
        model = Model(attention=attention)
        return Contender(_whole(), _loop(model, AdamW(model.parameters())))


def dream_tensor_step(attention: bool) -> Contender:
    with dream.strategy("model_parallel", split="tensor") as strategy:
        model = Model(attention=attention)
        optimizer = AdamW(model.parameters())
        return Contender(_whole(), strategy.train_step(model, F.cross_entropy, optimizer))


def raw_pipeline(attention: bool, *, schedule: str) -> Contender:
    model = Model(attention=attention)
    return Contender(_whole(), pipelines.raw(model, pipelines.KINDS[schedule]))


def dream_pipeline(attention: bool, *, schedule: str) -> Contender:
    build = partial(Model, attention=attention)
    return Contender(_whole(), pipelines.ours(build, schedule))


PIPELINE: dict[str, Make] = {
    "raw pipelining, 1f1b": partial(raw_pipeline, schedule="1f1b"),
    "raw pipelining, 1f1b again": partial(raw_pipeline, schedule="1f1b"),
    "dream, 1f1b": partial(dream_pipeline, schedule="1f1b"),
}
FAMILIES: dict[str, dict[str, Make]] = {
    "fsdp": {
        "raw fully_shard": raw_fsdp,
        "raw fully_shard again": raw_fsdp,
        "dream, own loop": dream_fsdp,
        "dream, train_step": dream_fsdp_step,
    },
    "tensor": {
        "raw parallelize_module": raw_tensor,
        "raw parallelize_module again": raw_tensor,
        "dream, own loop": dream_tensor,
        "dream, train_step": dream_tensor_step,
    },
    "pipeline": PIPELINE,
    "pipeline4": PIPELINE,
    "gpipe": {
        "raw pipelining, gpipe": partial(raw_pipeline, schedule="gpipe"),
        "raw pipelining, gpipe again": partial(raw_pipeline, schedule="gpipe"),
        "dream, gpipe": partial(dream_pipeline, schedule="gpipe"),
    },
}


def _loop(model: nn.Module, optimizer: Optimizer) -> Callable[..., None]:
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def _whole() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, TIME, WIDTH, generator=draw)
    return x, torch.randint(0, CLASSES, (BATCH,), generator=draw)


def _share() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = _whole()
    rank, size = distributed.get_rank(), distributed.get_world_size()
    return x[rank::size].contiguous(), y[rank::size].contiguous()
