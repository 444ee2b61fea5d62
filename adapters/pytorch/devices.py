"""The devices that a process computes on, and its random numbers."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator
from ctypes import c_double, c_float, c_int64
from typing import Any

import torch

from dream import _observers, cluster
from dream._adapter import Plan
from dream._errors import ConfigurationError
from dream._topology import own_gpu
from dream.adapters.pytorch.private import tree_leaves, tree_map


def several(plan: Plan, fewest: int = 1) -> list[torch.device]:
    """The devices that one process drives: the GPUs asked for, all of them by default; without
    any, logical ones on the CPU. fewest: what the other options need."""
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    wanted = plan.devices if plan.devices is not None else max(visible, fewest)
    if visible == 0:
        return [torch.device("cpu")] * wanted
    if wanted > visible:
        raise ConfigurationError(
            f"There are fewer devices than asked for. Received: {wanted} devices, {visible} GPUs. "
            f"Use devices={visible}, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to use the CPU."
        )
    return [torch.device("cuda", index) for index in range(wanted)]


def choose(plan: Plan) -> torch.device:
    """This rank's device: its own GPU where there are any, else the CPU.

    A torch process drives one device; more replicas are more processes.
    """
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    wanted = plan.devices if plan.devices is not None else (visible if plan.cluster.alone else 1)
    if plan.spec.update != "none" and plan.cluster.alone and wanted > 1:
        raise ConfigurationError(
            f"Under {plan.spec.name!r} a torch process uses one device. Received: {wanted} devices "
            f"in one process. Start one process per device: dream run -n {wanted} SCRIPT."
        )
    if plan.devices is not None and plan.devices > 1:
        raise ConfigurationError(
            f"A torch process uses one device. Received: devices={plan.devices}. Remove it, and "
            "start more processes: dream run -n N SCRIPT."
        )
    if visible == 0:
        return torch.device("cpu")
    device = torch.device("cuda", own_gpu(plan.cluster, visible))
    torch.cuda.set_device(device)
    return device


def on_gpu(array: Any) -> torch.Tensor:
    """A NumPy array as a tensor on this rank's GPU."""
    own = own_gpu(cluster.detect(), torch.cuda.device_count())
    return torch.from_numpy(array).to(f"cuda:{own}")


def beside(
    model: torch.nn.Module, batch: tuple[Any, ...], device: torch.device | None = None
) -> tuple[Any, ...]:
    """A batch where the model is: loaders yield it on the CPU, and a step is called with that. One
    that is partly elsewhere is left as it is: the script knows what stays, as lengths of sequences
    do. device: what the model is computed on, if it lies elsewhere."""
    if device is None:
        own = next((p for p in model.parameters() if not p.is_meta), None)  # others' are on meta
        device = None if own is None else own.device
    if device is None or device.type == "cpu":
        return batch
    if any(isinstance(x, torch.Tensor) and x.device.type != "cpu" for x in tree_leaves(batch)):
        return batch

    def moved(x: Any) -> Any:
        return x.to(device, non_blocking=True) if isinstance(x, torch.Tensor) else x

    found: tuple[Any, ...] = tree_map(moved, batch)
    return found


_WORTH = 1 << 30
"""Bytes of a GPU for which it is worth a look at all objects, of some 0.1 s."""


def make_room(parameters: Iterator[torch.Tensor]) -> None:
    """Have earlier models leave a GPU before another is trained there. A distributed model refers
    to itself, and Python collects by the number of objects, not by what they hold on a GPU."""
    held = next((p.device for p in parameters if p.is_cuda), None)
    if held is not None and torch.cuda.memory_allocated(held) > _WORTH:
        gc.collect()


def is_away(x: torch.Tensor) -> bool:
    """Whether to read a tensor's numbers has the host wait for a device."""
    return x.is_cuda


_AS_C: dict[torch.dtype, Any] = {
    torch.float32: c_float, torch.float64: c_double, torch.int64: c_int64
}  # fmt: skip
_item: Callable[[torch.Tensor], float] = torch.Tensor.item
"""As it was before any block watched it: dream's reads are not the loop's."""


def number_in(x: torch.Tensor) -> float:
    """Return the number of a tensor of one element. On a CPU it is read where it lies: the first
    operation after a backward pass costs a small model's step a hundredth, its code being out of
    the processor's caches by then."""
    kind = _AS_C.get(x.dtype)
    if kind is None or type(x) is not torch.Tensor or not x.is_cpu:
        return _item(x)
    number: float = kind.from_address(x.data_ptr()).value
    return number


def put_number(x: torch.Tensor, number: float) -> None:
    """Write it to a tensor of one element, which autograd does not notice. As `number_in`."""
    kind = _AS_C.get(x.dtype)
    if kind is None or type(x) is not torch.Tensor or not x.is_cpu:
        x.data.fill_(number)
    else:
        kind.from_address(x.data_ptr()).value = number


def share_cores(share: int, allowed: int) -> None:
    """Have torch compute with this rank's share of the cores, unless the script has said how many.
    allowed: those that the process may run on, all of which torch takes by itself."""
    taken = torch.get_num_threads()
    if taken in (allowed, allowed // 2):  # a half, where cores have two threads each
        torch.set_num_threads(min(share, taken))


def seed(number: int) -> None:
    """Seed torch's generators, for a script that may not do so."""
    torch.manual_seed(number)


def offset_by(rank: int) -> None:
    """Move torch's, NumPy's and Python's generators by `rank`; rank 0's stay untouched."""
    if rank == 0 or _observers.draws_alike():
        return
    torch.manual_seed(torch.initial_seed() + rank)
    random.seed(random.getrandbits(32) + rank)
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed((int(np.random.randint(2**31)) + rank) % 2**32)
