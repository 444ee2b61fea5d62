"""DDP whose buckets go through shared memory, beside DDP on gloo and one device."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from dream import Unsupported, cluster
from dream.adapters.shared_memory.pytorch import connect

SAMPLES, FEATURES = 24, 300


def gradients() -> dict[str, torch.Tensor]:
    """Flat, after a backward of the mean loss over the same samples, dealt out in equal shares."""
    distributed.init_process_group("gloo")
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(SAMPLES, FEATURES, generator=draw), torch.arange(SAMPLES) % 5
    rank, size = distributed.get_rank(), distributed.get_world_size()
    wire = connect(cluster.detect(), "shared_memory")
    plain, shared = DistributedDataParallel(_model()), DistributedDataParallel(_model())
    shared.register_comm_hook(None, wire.gradient_hook)
    alone = _model()
    F.cross_entropy(alone(x), y).backward()
    for model in (plain, shared):
        F.cross_entropy(model(x[rank::size]), y[rank::size]).backward()
    found = {"alone": _flat(alone), "gloo": _flat(plain), "shared": _flat(shared)}
    del model, plain, shared
    _leave()
    return found


@dataclass
class State:
    """What a hook is given by a module."""

    kept: dict[int, Any] | None = None
    reduced: bool = False


def where_buckets_lie(little: bool) -> list[tuple[bool, bool]]:
    """Of each of four backward passes: whether gradients are the ranks' own, added up in the order
    of the ranks and divided once, to the bit; and whether all of them lie in memory of all ranks.
    little: rank 0 may make no more memory of that kind."""
    distributed.init_process_group("gloo")
    wire, state, found = connect(cluster.detect(), "shared_memory"), State(), []
    if little and distributed.get_rank() == 0:  # which makes the memory
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    own = _model()
    shared = DistributedDataParallel(_model(), gradient_as_bucket_view=True)
    shared.register_comm_hook(state, wire.gradient_hook)
    for turn in range(4):
        torch.manual_seed(10 * turn + distributed.get_rank())
        x = torch.randn(SAMPLES, FEATURES)
        for model in (own, shared):
            model.zero_grad()
            model(x).square().mean().backward()
        kept = (state.kept or {}).values()
        rows = [each.row for each in kept if each.row is not None]
        inside = [
            any(row.own <= p.grad.data_ptr() < row.own + row.stride for row in rows)
            for p in shared.parameters()
            if p.grad is not None and p.numel() > 50_000
        ]
        found.append((torch.equal(_mean(_flat(own)), _flat(shared)), all(inside)))
    del model, shared
    _leave()
    return found


def _leave() -> None:
    """After the last DDP: one that is the last to hold the group may wait for ever for the group's
    threads (torch's issue 56297)."""
    distributed.barrier()
    distributed.destroy_process_group()


def _mean(own: torch.Tensor) -> torch.Tensor:
    ranks = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(ranks, own)
    return reduce(torch.add, ranks) / len(ranks)


def refusal() -> str:
    wire = connect(cluster.detect(), "shared_memory")
    try:
        wire.all_reduce([torch.ones(2, dtype=torch.int8)], "sum")
    except Unsupported as error:
        return str(error)
    return "nothing"


def both() -> tuple[dict[str, torch.Tensor], str]:
    return gradients(), refusal()


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 2000), nn.ReLU(), nn.Linear(2000, 5))


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])
