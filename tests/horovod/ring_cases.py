"""What a rank does in the tests of torch's ring."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dream
from dream import _registry, _spec, cluster
from dream._adapter import Plan

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")
OPS = ("sum", "mean", "min", "max")
BUCKETS: dict[str, dict[str, Any]] = {
    "one bucket": {},
    "many buckets": {"bucket_cap_mb": 0.002},
    "views": {"bucket_cap_mb": 0.002, "gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
}


def run() -> dict[str, Any]:
    torch.set_num_threads(1)
    place = cluster.detect()
    plan = Plan(_spec.find("horovod"), "torch", place, "horovod", None, 0, {})
    with dream.strategy("horovod"):  # starts the process group that DDP wants beside the ring
        ring = _registry.reduction("torch", "horovod")(plan)
    results = dict(tensors(ring))
    results |= {name: trained(ring, more) for name, more in BUCKETS.items()}
    results["half"] = trained(ring, {}, torch.bfloat16)
    results["two models"] = two_models(ring)
    results["identical"] = ring.all_gather_object(
        [p.numpy().tobytes() for name in BUCKETS for p in results[name][1]]
    )
    results["shapes"] = told(lambda: ring.all_reduce(torch.ones(3 + ring.rank)))
    results["after"] = ring.all_reduce(np.ones(2), "sum")
    results["root"] = told(lambda: ring.broadcast(torch.ones(2), 9))
    results["complex"] = told(lambda: ring.all_reduce(torch.ones(2, dtype=torch.complex64), "sum"))
    return results


def told(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except dream.DreamError as error:
        return f"{type(error).__name__}: {error}"


def mine(dtype: str, rank: int) -> torch.Tensor:
    return (torch.arange(6).reshape(2, 3) + rank).to(getattr(torch, dtype))


def tensors(ring: Any) -> Iterator[tuple[str, Any]]:
    for dtype in DTYPES:
        for op in OPS:
            x = mine(dtype, ring.rank)
            result = told(lambda x=x, op=op: ring.all_reduce(x, op))
            yield f"{op} {dtype}", result
            assert torch.equal(x, mine(dtype, ring.rank))
    together = [torch.ones(2, 2) * ring.rank, np.float32(ring.rank), np.full(3, ring.rank)]
    yield "list", [np.asarray(x) for x in ring.all_reduce([*together, torch.ones(0)], "sum")]
    yield "broadcast", ring.broadcast([mine("bool", 0), mine("float64", ring.rank)], 1)
    yield "gathered", ring.all_gather_object({"rank": ring.rank, "text": "x" * ring.rank})
    yield "said", ring.broadcast_object(("from", ring.rank), ring.world_size - 1)
    ring.barrier()


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
    _steps(ddp, together, slice(ring.rank, None, ring.world_size))
    return _parameters(alone), _parameters(together)


def _parameters(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def two_models(ring: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Two modules in one backward."""
    ends = []
    for parts in (1, ring.world_size):
        torch.manual_seed(1)
        models = [nn.Linear(20, 20), network()]
        called = models
        if parts > 1:
            called = [DistributedDataParallel(m, bucket_cap_mb=0.002) for m in models]
            for ddp in called:
                ddp.register_comm_hook(None, ring.gradient_hook)
        mine = slice(ring.rank if parts > 1 else 0, None, parts)
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
