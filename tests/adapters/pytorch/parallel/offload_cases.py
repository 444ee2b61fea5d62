"""What each rank of a job finds where shards lie on the host. Without a GPU that is where it
computes too, and FSDP2 goes the same way, save that it copies nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from sharding_models import Reader, adamw, alone, apart, heard, momentum, refused, split, train
from torch import nn
from torch.distributed.tensor import DTensor

import dream

OFFLOAD: dict[str, Any] = {"framework": "torch", "cpu_offload": True}


def exact() -> dict[str, float]:
    """By each way to make an update, the largest difference from plain torch."""
    one, clipped = alone(Reader, momentum), _trained(Reader())
    found = {}
    for options in ({}, {"zero": 2}, {"accumulate": 2}, {"recompute": True}):
        ours = split(Reader, momentum, "sharded", cpu_offload=True, **options)
        found[f"{options}"] = max(apart(ours, one).values())
    ours = split(Reader, momentum, "sharded", cpu_offload=True, clip_norm=_NORM)
    found["clip_norm="] = max(apart(ours, clipped).values())
    with dream.strategy("sharded", **OFFLOAD) as strategy:
        found["clipped in the loop"] = max(apart(_trained(Reader(), strategy), clipped).values())
    return found


_NORM = 0.1


def _trained(model: nn.Module, strategy: dream.Strategy | None = None) -> dict[str, Any]:
    """What a loop that clips ends with."""
    torch.manual_seed(0)
    model.load_state_dict(Reader().state_dict())
    clip = partial(nn.utils.clip_grad_norm_, max_norm=_NORM)
    train(model, momentum(model.parameters()), between=lambda: clip(model.parameters()))
    if strategy is not None:
        return strategy.full_state(model)
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def kept(folder: str) -> dict[str, Any]:
    """Saved after an epoch, and gone on from in a model made on meta."""
    one = alone(Reader, adamw)
    torch.manual_seed(0)
    with dream.strategy("sharded", **OFFLOAD) as strategy:
        model = Reader()
        optimizer = adamw(model.parameters())
        train(model, optimizer, epochs=1)
        strategy.save(folder, step=1, model=model, optimizer=optimizer).wait()
    with dream.strategy("sharded", **OFFLOAD) as strategy:
        with torch.device("meta"):
            model = Reader()
        optimizer = adamw(model.parameters())
        strategy.load(folder, model=model, optimizer=optimizer)
        train(model, optimizer, epochs=1)
        state = strategy.full_state(model)
    return {"apart": apart(state, one), "cut": isinstance(next(model.parameters()), DTensor)}


def said() -> dict[str, str]:
    """Of a penalty on shards, of a part that was frozen when it was cut too; and what is told."""
    found: dict[str, str] = {}
    with heard() as lines:
        for frozen in (False, True):
            with dream.strategy("sharded", **OFFLOAD):
                model = Reader()
                part = model.blocks[0].requires_grad_(not frozen)
                momentum(model.parameters())
                part.requires_grad_(True)
                loss = model(torch.ones(2, 6, dtype=torch.long)).sum()
                penalty = part.up.weight.pow(2).sum()
                found[f"frozen={frozen}"] = refused((loss + penalty).backward)
    return found | {"told": "\n".join(lines)}


def everything(folder: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    return {"exact": exact(), "kept": kept(folder), "said": said()}
