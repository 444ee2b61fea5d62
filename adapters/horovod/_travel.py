"""What the ring carries of torch, and how a collective is waited for."""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Any

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

from dream._errors import Unsupported
from dream.adapters.horovod._ring import explained

CARRIED = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
"""A gradient's dtype -> the one it travels in. Half precision is added up in float32."""

_NAP = 0.00005


def check_device(flat: torch.Tensor) -> None:
    """The core is built without NCCL."""
    if flat.device.type != "cpu":
        raise Unsupported(
            "The ring carries CPU tensors. Received: one on "
            f"{flat.device}. Take reduction='nccl' for GPUs."
        )


def carried(flat: torch.Tensor) -> torch.Tensor:
    """A bucket in the dtype it travels in; itself where it has that already."""
    check_device(flat)
    if flat.dtype not in CARRIED:
        raise Unsupported(
            f"Gradients of this dtype do not travel in the ring. Received: {flat.dtype}. It takes: "
            f"{', '.join(str(dtype).removeprefix('torch.') for dtype in CARRIED)}."
        )
    return flat.to(CARRIED[flat.dtype])


def wait(handle: int) -> Any:
    """What a collective gives, once it is over; what it raises is said in dream's words."""
    try:
        if _crowded():
            _nap_until_done(handle)
        return hvd.synchronize(handle)
    except HorovodInternalError as error:
        raise explained(error) from error


@cache
def _crowded() -> bool:
    """More ranks than cores: the core's way of waiting, which never lets go of its own, would
    take it from the ranks that are waited for."""
    return bool(hvd.local_size() > len(os.sched_getaffinity(0)))


def _nap_until_done(handle: int) -> None:
    while not hvd.poll(handle):
        time.sleep(_NAP)
