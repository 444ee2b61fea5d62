"""What DTensors do in the block that torch's own do not.

- A number that is read of one (`float(x)`, `x.item()`, `if x:`) is the whole one; torch reads this
  rank's part of a sum that is still in parts, in silence.
- Beside an ordinary tensor of the same shape (an average of the weights that was begun before the
  model was split) it is made whole, where no gradient is asked for; torch refuses the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributed
from torch.distributed.tensor import DTensor

from dream._errors import ConfigurationError
from dream._log import logger
from dream.adapters.pytorch.parallel.sharding.parameters import shard_like
from dream.adapters.pytorch.private import OpOverload, past_handlers, to_local, to_whole, tree_map

Handler = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]
_aten = torch.ops.aten
_said: set[str] = set()


def handlers() -> Mapping[OpOverload, Handler]:
    """Return what takes DTensors' operations in the block."""
    in_place = (
        _aten.add_.Tensor, _aten.sub_.Tensor, _aten.copy_.default, _aten.lerp_.Scalar,
        _aten.lerp_.Tensor,
    )  # fmt: skip
    others = (
        _aten.add.Tensor, _aten.sub.Tensor, _aten.lerp.Scalar, _aten.lerp.Tensor,
        _aten._foreach_lerp_.Scalar, _aten._foreach_copy_.default,
    )  # fmt: skip
    read: dict[OpOverload, Handler] = {_aten._local_scalar_dense.default: _read}
    return read | dict.fromkeys(in_place, _in_place) | dict.fromkeys(others, _made)


def _read(operation: OpOverload, args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return operation(to_whole(args[0]))


def _in_place(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Change the first argument. Of two that are cut alike, each rank changes what it has: that is
    an optimizer's step, and quicker than torch's way."""
    first, second = args[0], args[1]
    if isinstance(first, DTensor):
        if _cut_alike(first, second) and not any(isinstance(x, DTensor) for x in args[2:]):
            operation(to_local(first), to_local(second), *args[2:], **kwargs)
            return first
        if operation is _aten.copy_.default and _ordinary(second, first) and _unwatched(args):
            _check_alike(second, first)
            operation(to_local(first), to_local(shard_like(second, first)), *args[2:], **kwargs)
            return first
        return past_handlers(operation, args, kwargs)
    return _made(operation, args, kwargs)


def _made(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute what an ordinary tensor, or a list of them, becomes of whole ones."""
    first, second = (x[0] if isinstance(x, list | tuple) else x for x in args[:2])
    mixed = _ordinary(first, second) or _ordinary(second, first)
    if not (mixed and _unwatched((first, second))):
        return past_handlers(operation, args, kwargs)
    _tell_whole()
    return operation(*tree_map(_whole, args), **kwargs)


def _whole(value: Any) -> Any:
    return to_whole(value) if isinstance(value, DTensor) else value


def _ordinary(one: Any, other: Any) -> bool:
    """Tell an ordinary tensor beside a DTensor of its shape."""
    return (
        isinstance(other, DTensor)
        and isinstance(one, torch.Tensor)
        and not isinstance(one, DTensor)
        and one.dim() > 0
        and one.shape == other.shape
    )


def _unwatched(tensors: tuple[Any, ...]) -> bool:
    if not torch.is_grad_enabled():
        return True
    return not any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)


def _cut_alike(one: DTensor, other: Any) -> bool:
    if not isinstance(other, DTensor) or one.shape != other.shape:
        return False
    same = one.placements == other.placements
    return same and not any(placement.is_partial() for placement in one.placements)


def _check_alike(tensor: torch.Tensor, like: DTensor) -> None:
    """Refuse to cut a tensor of which the ranks have other values."""
    values = tensor.detach().double().nan_to_num()
    sums = torch.stack([values.sum(), values.square().sum()])
    both = torch.cat([sums, -sums])
    for axis in range(like.device_mesh.ndim):
        group = like.device_mesh.get_group(axis)
        distributed.all_reduce(both, distributed.ReduceOp.MAX, group=group)
    if not torch.equal(both[:2], -both[2:]):
        raise ConfigurationError(
            "The ranks have other values of a tensor that is copied into a parameter in shards. "
            f"Received: a tensor of shape {tuple(tensor.shape)}. Make it alike by "
            "strategy.communicator.all_reduce or broadcast first."
        )


def _tell_whole() -> None:
    if "whole" not in _said:
        _said.add("whole")
        logger.info(
            "a copy or an average of the parameters that was begun before the model was split is "
            "whole on every rank, which is exact, and takes its memory; one that is begun after "
            "the optimizer is made is in shards"
        )
