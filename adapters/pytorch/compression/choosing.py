"""Which exchange was asked for."""

from __future__ import annotations

import torch

from dream.adapters.pytorch.compression.adasum import Adasum
from dream.adapters.pytorch.compression.exchange import Exchange
from dream.adapters.pytorch.compression.hook import Exchanged
from dream.adapters.pytorch.compression.largest import Largest
from dream.adapters.pytorch.compression.low_rank import LowRank
from dream.adapters.pytorch.compression.rounding import Rounded
from dream.collectives import Communicator, Wire
from dream.update.compression import Compression
from dream.update.update import Knobs


def exchanged_of(knobs: Knobs, wire: Wire, communicator: Communicator) -> Exchanged | None:
    """What gradients are handed to; None for their plain mean."""
    world_size = communicator.world_size
    if knobs.op == "adasum":
        return Exchanged(Adasum(communicator.unchecked()), wire, world_size)
    if knobs.compressed is None:
        return None
    return Exchanged(_compressed(knobs.compressed, wire, world_size), wire, world_size)


def _compressed(asked: Compression, wire: Wire, world_size: int) -> Exchange:
    match asked.kind:
        case "float16":
            return Rounded(wire, world_size, torch.float16)
        case "bfloat16":
            return Rounded(wire, world_size, torch.bfloat16)
        case "powersgd":
            return LowRank(wire, world_size, int(asked.amount))
        case "topk":
            return Largest(wire, world_size, asked)
