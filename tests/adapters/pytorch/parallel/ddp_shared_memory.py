"""DDP whose buckets go through shared memory, beside DDP on gloo and one device."""

from __future__ import annotations

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
    distributed.barrier()
    distributed.destroy_process_group()
    return {"alone": _flat(alone), "gloo": _flat(plain), "shared": _flat(shared)}


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
