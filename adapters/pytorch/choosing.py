"""What `reduction="auto"` and `single` take for torch."""

from __future__ import annotations

import torch

from dream import _registry
from dream._adapter import Adapter, Plan
from dream._topology import Cluster
from dream.adapters.pytorch import collectives
from dream.adapters.pytorch.parallel.ddp.hooks import TorchWire
from dream.adapters.pytorch.parallel.ddp.synchronous import Synchronous
from dream.adapters.pytorch.single import Single
from dream.shared_memory.groups import serves
from dream.update.update import Knobs


def connect(place: Cluster, reduction: str) -> TorchWire:
    """Shared memory for CPU tensors on one host; else torch's own process group, which has gloo
    for the CPU and NCCL for GPUs."""
    if torch.cuda.is_available() or not serves(place):
        return collectives.connect(place, reduction)
    wire: TorchWire = _registry.reduction("torch", "shared_memory")(place, "shared_memory")
    return wire


def single(plan: Plan) -> Adapter:
    """One device: plain, or one replica of `mirrored` where a knob is to be honoured."""
    return Synchronous(plan) if Knobs.of(plan.options).asked else Single(plan)
