"""What a rank does in the tests of torch's ring."""

from __future__ import annotations

import copy
import os
import time
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dream
from dream import cluster
from dream.strategies import registry

BUCKETS: dict[str, dict[str, Any]] = {
    "one bucket": {},
    "many buckets": {"bucket_cap_mb": 0.002},
    "views": {"bucket_cap_mb": 0.002, "gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
}


def run() -> dict[str, Any]:
    torch.set_num_threads(1)
    place = cluster.detect()
    with dream.strategy("horovod") as strategy:  # starts the group that DDP wants beside the ring
        ring = registry.reduction("torch", "horovod")(place, "horovod")
    results: dict[str, Any] = {name: trained(ring, more) for name, more in BUCKETS.items()}
    results["half"] = trained(ring, {}, torch.bfloat16)
    results["two models"] = two_models(ring)
    results["identical"] = strategy.communicator.all_gather_object(
        [p.numpy().tobytes() for name in BUCKETS for p in results[name][1]]
    )
    return results


def left() -> dict[str, Any]:
    """Whether the core runs while all ranks are there, and on rank 0 once the others have gone."""
    from dream.adapters.horovod import _travel

    with dream.strategy("horovod") as strategy:
        before = _travel.core_runs()
        strategy.communicator.barrier()
        if strategy.topology.rank:
            os._exit(0)
        end = time.monotonic() + 100
        while _travel.core_runs() and time.monotonic() < end:
            time.sleep(0.01)
        return {"before": before, "after": _travel.core_runs()}


def network() -> nn.Module:
    torch.manual_seed(0)
    first, second, last = nn.Linear(20, 64), nn.Linear(64, 32), nn.Linear(32, 5)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


def trained(
    ring: Any, more: dict[str, Any], dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Parameters after some steps: of one device, and of DDP over the ring."""
    alone = network().to(dtype)
    together = copy.deepcopy(alone)
    ddp = DistributedDataParallel(together, **more)
    ddp.register_comm_hook(None, ring.gradient_hook)
    _steps(alone, alone, slice(None))
    _steps(ddp, together, _share())
    return _parameters(alone), _parameters(together)


def _share() -> slice:
    place = cluster.detect()
    return slice(place.rank, None, place.world_size)


def _parameters(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def two_models(ring: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Two modules in one backward."""
    ends = []
    for parts in (1, cluster.detect().world_size):
        torch.manual_seed(1)
        models = [nn.Linear(20, 20), network()]
        called = models
        if parts > 1:
            called = [DistributedDataParallel(m, bucket_cap_mb=0.002) for m in models]
            for ddp in called:
                ddp.register_comm_hook(None, ring.gradient_hook)
        mine = _share() if parts > 1 else slice(None)
        _steps(nn.Sequential(*called), nn.ModuleList(models), mine)
        ends.append(_parameters(nn.ModuleList(models)))
    return ends[0], ends[1]


def _steps(model: nn.Module, owner: nn.Module, mine: slice) -> None:
    draw = torch.Generator().manual_seed(3)
    dtype = next(owner.parameters()).dtype
    optimizer = torch.optim.SGD(owner.parameters(), 0.05, momentum=0.9)
    for _ in range(20):
        x, y = torch.randn(12, 20, generator=draw), torch.randint(0, 5, (12,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[mine].to(dtype)), y[mine]).backward()
        optimizer.step()
