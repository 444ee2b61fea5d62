"""What the ring carries of torch, and how a collective is waited for."""

from __future__ import annotations

import os
import time
from functools import cache

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
    torch.bool: torch.int32,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
    torch.int16: torch.int32,
    torch.int32: torch.int32,
    torch.int64: torch.int64,
}
"""A tensor's dtype -> the one it travels in. Half precision is added up in float32."""

_NAP = 0.00005


def carried(flat: torch.Tensor) -> torch.Tensor:
    """`flat` in the dtype it travels in; itself where it has that already."""
    if flat.dtype not in CARRIED or flat.device.type != "cpu":
        raise Unsupported(
            "This tensor does not travel in the ring. Received: "
            f"{flat.dtype} on {flat.device}. The ring takes CPU tensors of: "
            f"{', '.join(str(dtype).removeprefix('torch.') for dtype in CARRIED)}."
        )
    return flat.to(CARRIED[flat.dtype])


def wait(handle: int) -> None:
    """Return once a collective is over; what it raises is said in dream's words."""
    try:
        if _crowded():
            _nap_until_done(handle)
        hvd.synchronize(handle)
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
