"""Torch's tensors as a checkpoint's arrays: made whole, copied, and laid out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

from dream._errors import Unsupported
from dream.adapters.pytorch import tensors
from dream.adapters.pytorch.private import to_local
from dream.checkpoint.content import BFLOAT16, Arrays
from dream.checkpoint.storage.allotment import Wanted
from dream.checkpoint.storage.array_files import StoredArrays, part_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


Joined = Callable[[torch.Tensor], torch.Tensor]
"""What one tensor is of those that the ranks have. Every rank calls it."""


def gathered(value: torch.Tensor) -> torch.Tensor:
    gather: Callable[[], torch.Tensor] | None = getattr(value, "full_tensor", None)
    return value if gather is None else gather()


def wholes(
    held: Mapping[str, torch.Tensor],
    wanted: Wanted,
    owners: Mapping[str, int] = MappingProxyType({}),
    joined: Joined = gathered,
) -> dict[str, NDArray[Any]]:
    """Return copies of those that are wanted. Every rank takes part in making each whole. owners:
    of those that one rank alone has, and others on the meta device."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in held.items():
        _check_kept(name, value)
        whole = joined(value)
        if wanted(name, whole.numel() * whole.element_size(), owners.get(name)):
            arrays[name] = array_of(whole)
    return arrays


@torch.no_grad()
def write_into(tensor: torch.Tensor, name: str, arrays: Arrays) -> None:
    """Write what this rank holds of an array into a tensor."""
    local = to_local(tensor)
    direct = local is tensor and local.device.type == "cpu" and local.dtype is not torch.bfloat16
    if direct and isinstance(arrays, StoredArrays) and arrays.read_into(name, local.numpy()):
        local.view(-1)[:0].zero_()  # torch counts who has written
        return
    local.copy_(to_local(laid_as(tensor, name, arrays)))


def laid_as(like: torch.Tensor, name: str, arrays: Arrays) -> torch.Tensor:
    """Return what this rank holds of an array, spread over the ranks as `like` is."""
    if not hasattr(like, "full_tensor"):
        return torch.from_numpy(part_of(arrays, name, None))
    from torch.distributed.tensor import DTensor, distribute_tensor  # slow to come

    assert isinstance(like, DTensor)
    cut = _cut_of(like)
    mesh, placements = like.device_mesh, like.placements
    whole_or_part = torch.from_numpy(part_of(arrays, name, cut)).to(like.device)
    if cut is None:
        made = distribute_tensor(whole_or_part, mesh, placements, src_data_rank=None)
    else:
        made = DTensor.from_local(
            whole_or_part, mesh, placements, run_check=False,
            shape=like.shape, stride=like.stride(),
        )  # fmt: skip
    return made.cpu() if like.device.type == "cpu" else made  # offloaded, of a mesh of GPUs


def _cut_of(like: DTensor) -> tuple[slice, ...] | None:
    """Return this rank's part of a tensor, of which torch's first ones are no shorter; None where
    it is no block."""
    cut = [slice(None)] * like.dim()
    for axis, placement in enumerate(like.placements):
        if placement.is_replicate():
            continue
        dim = getattr(placement, "dim", None)
        if not placement.is_shard() or dim is None or cut[dim] != slice(None):
            return None
        size, parts = like.shape[dim], like.device_mesh.size(axis)
        each = -(-size // parts)
        start = min(like.device_mesh.get_local_rank(axis) * each, size)
        cut[dim] = slice(start, min(start + each, size))
    return tuple(cut)


def array_of(whole: torch.Tensor) -> NDArray[Any]:
    """Return a copy; NumPy has no bfloat16, whose bits it is then."""
    if whole.dtype is not torch.bfloat16:
        return tensors.array_of(whole)
    return tensors.array_of(whole.detach().view(torch.int16)).view(BFLOAT16)


def _check_kept(name: str, tensor: torch.Tensor) -> None:
    """Refuse what no array can hold, on every rank: one alone will write it."""
    try:
        array_of(torch.empty(0, dtype=tensor.dtype, layout=tensor.layout))
    except (TypeError, RuntimeError) as error:
        raise Unsupported(
            f"A checkpoint holds arrays of numbers. Received: {name!r}, a tensor of "
            f"{tensor.dtype}, {tensor.layout}. Keep it out of the model's state, or dense and in "
            "another type."
        ) from error
