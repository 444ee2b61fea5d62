"""What the ring carries of torch, and how a collective is waited for."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

from dream import cluster, stall
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
_SOON = 0.005
"""Seconds in which a collective is over where all ranks have come: later it waits for one of them,
or is a large one, which takes all of them as long."""
_PATIENCE = 1.0
_LONG_NAP = 0.002
_CALL = "a collective of the ring"
stall.waits_inside({__file__: _CALL})


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


def begin(collective: Callable[..., int], *args: Any, **kwargs: Any) -> int:
    """One of Horovod's asynchronous collectives; its handle. The core takes a tensor under a lock
    that it keeps while it waits for another rank, and Horovod asks for that lock with the
    interpreter held: so it is waited for here first, where other threads can run meanwhile."""
    core_runs()
    return collective(*args, **kwargs)


def wait(handle: int) -> Any:
    """What a collective gives, once it is over; what it raises is said in dream's words."""
    try:
        _until_done(handle)
        return hvd.synchronize(handle)
    except HorovodInternalError as error:
        raise explained(error) from error


def _until_done(handle: int) -> None:
    """The core can forget what was given to it in the moment in which it fails: a handle that is
    never over. So a long wait asks whether there still is a core."""
    if not _done_within(handle, _SOON):
        with stall.waiting(_CALL):
            if not _done_within(handle, _PATIENCE):
                _until_over(handle)


def _done_within(handle: int, seconds: float) -> bool:
    nap, end = _nap(), time.monotonic() + seconds
    while not hvd.poll(handle):
        time.sleep(nap)
        if time.monotonic() > end:
            return False
    return True


def _until_over(handle: int) -> None:
    patience = stall.Patience(cluster.stall_seconds())
    while not hvd.poll(handle):
        time.sleep(_LONG_NAP)
        if not core_runs() and not hvd.poll(handle):
            raise HorovodInternalError("Horovod has been shut down.")
        if patience.over():
            raise stall.overdue(_CALL, patience.seconds)


@cache
def _nap() -> float:
    """Seconds between two looks. With more ranks than cores, a wait that never lets go of its core
    would take it from the ranks that are waited for."""
    return _NAP if hvd.local_size() > len(os.sched_getaffinity(0)) else 0.0


def core_runs() -> bool:
    """Whether the core's own thread is there. It forgets who is in the ring when it ends."""
    ranks = (ctypes.c_int * hvd.size())()
    core = hvd.mpi_ops._basics.MPI_LIB_CTYPES
    return bool(core.horovod_process_set_ranks(ctypes.c_int(0), ranks) == 0)
