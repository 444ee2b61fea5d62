"""What DTensors do in the block that torch's own do not.

- A number that is read of one (`float(x)`, `x.item()`, `if x:`) is the whole one; torch reads this
  rank's part of a sum that is still in parts, in silence. So are many numbers (`x.tolist()`,
  `x.numpy()`), which torch refuses.
- Beside an ordinary tensor (of the same shape: an average of the weights that was begun before the
  model was split; of another: a method of a model's that samples) it is made whole, where no
  gradient is asked for; torch refuses the two together.
  Where the DTensor is what is changed or differentiated, one of its shape is cut as it is, once all
  ranks are known to have the same.
- Beside a number of this rank's own (a loss that a penalty on parameters is added to) a sum that is
  still in parts is made whole; torch takes the ranks' numbers for one, and their mean for each.
- Random numbers are those of the whole; torch draws on each rank for its shard.
- A parameter whose `data` is set is refused; torch sets nothing, in silence.
- Rows that are taken of one (`p[7].zero_()`, `p.data[2:5] = 0`) are gathered from the ranks, and to
  write to them is refused; torch writes to that copy, in silence. So is a view (`p.flatten()`) for
  which the ranks' parts are unequal; torch refuses that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.distributed.tensor import DTensor, Replicate

from dream._errors import ConfigurationError, Unsupported
from dream._log import say_once
from dream.adapters.pytorch import private
from dream.adapters.pytorch.hooks import DTensorHandlers
from dream.adapters.pytorch.parallel.sharding.parameters import shard_like
from dream.adapters.pytorch.private import (
    OpOverload,
    be_whole,
    past_handlers,
    to_local,
    to_whole,
    tree_map,
)

Handler = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]
_IN_PLACE = ("add_.Tensor", "sub_.Tensor", "copy_.default", "lerp_.Scalar", "lerp_.Tensor")
_MADE = ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "lerp.Scalar", "lerp.Tensor",
         "_foreach_lerp_.Scalar", "_foreach_copy_.default")  # fmt: skip
_DRAWN = ("normal_.default", "uniform_.default", "bernoulli_.float", "bernoulli.default",
          "randn_like.default", "rand_like.default")  # fmt: skip
_VIEWS = ("select.int", "slice.Tensor", "view.default", "split.Tensor", "diagonal.default",
          "squeeze.default", "squeeze.dim", "unsqueeze.default", "detach.default", "t.default",
          "transpose.int")  # fmt: skip
_WRITES = ("zero_.default", "fill_.Scalar", "fill_.Tensor", "mul_.Tensor", "div_.Tensor",
           "clamp_.default", "clamp_min_.default", "clamp_max_.default", "neg_.default",
           "masked_fill_.Scalar", "index_put_.default", "exp_.default", "abs_.default",
           "sign_.default", "relu_.default")  # fmt: skip
_GATHERED = "_dream_gathered"
_DATA: Any = torch.Tensor.data


def in_the_block() -> DTensorHandlers:
    """Return what is put in place while a block is open."""
    own = {"__format__": _formatted, "data": property(_DATA.__get__, _set_data),
           "tolist": _listed, "numpy": _as_numpy}  # fmt: skip
    return DTensorHandlers(DTensor, _handlers(), own)


def _handlers() -> Mapping[OpOverload, Handler]:
    by_name: dict[str, Handler] = dict.fromkeys(_IN_PLACE, _in_place) | dict.fromkeys(_MADE, _made)
    by_name |= dict.fromkeys(_DRAWN, _drawn)
    by_name |= dict.fromkeys(_VIEWS, _viewed) | dict.fromkeys(_WRITES, _past)
    by_name |= {"_local_scalar_dense.default": _read, "pow_.Scalar": _of_parts}
    return {
        _operation(name): _checked(x) if name.partition(".")[0].endswith("_") else x
        for name, x in by_name.items()
    }


def _operation(name: str) -> OpOverload:
    packet, _, overload = name.partition(".")
    found: OpOverload = getattr(getattr(torch.ops.aten, packet), overload)
    return found


def _checked(handler: Handler) -> Handler:
    """Refuse to write to what is a copy, and would be the script's own tensor on one device."""

    def checked(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(args[0], _GATHERED, False):
            raise Unsupported(
                "What is written to rows of a tensor in shards would be lost: they are a copy, "
                f"gathered from all ranks. Received: {operation}, to a part of shape "
                f"{tuple(args[0].shape)}. Write to the whole: `whole = parameter.full_tensor()`, "
                "change that, and `parameter.copy_(whole)`; or use 'mirrored', or zero=1."
            )
        return handler(operation, args, kwargs)

    return checked


def _viewed(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Know views that have to be gathered, and those of such."""
    whole = args[0]
    try:
        made = past_handlers(DTensor, operation, args, kwargs)
    except RuntimeError:  # as where dims are made one of which ranks have unequal parts
        if not isinstance(whole, DTensor) or whole.placements == _all_of(whole):
            raise
        made = past_handlers(DTensor, operation, (_replicated(whole), *args[1:]), kwargs)
    if isinstance(whole, DTensor):
        for part in made if isinstance(made, list | tuple) else [made]:
            if getattr(whole, _GATHERED, False) or _is_gathered(part, whole):
                setattr(part, _GATHERED, True)
    return made


def _is_gathered(part: DTensor, of: DTensor) -> bool:
    pairs = zip(of.placements, part.placements, strict=True)
    return any(before.is_shard() and now.is_replicate() for before, now in pairs)


def _past(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As torch takes it; quicker beside a number, as an optimizer's steps have them."""
    first = args[0]
    by_number = len(args) == 2 and isinstance(first, DTensor) and isinstance(args[1], int | float)
    if by_number and not any(placement.is_partial() for placement in first.placements):
        operation(to_local(first), args[1], **kwargs)
        return first
    return past_handlers(DTensor, operation, args, kwargs)


def _read(operation: OpOverload, args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return operation(to_whole(args[0]))


def _formatted(tensor: DTensor, how: str) -> str:
    """Format a number as torch formats its own tensors'."""
    return object.__format__(tensor, how) if tensor.dim() else tensor.item().__format__(how)


def _listed(tensor: DTensor) -> Any:
    return to_whole(tensor).tolist()


def _as_numpy(tensor: DTensor, *, force: bool = False) -> Any:
    return to_whole(tensor).numpy(force=force)


def _set_data(tensor: DTensor, value: Any) -> None:
    """Set a tensor's data. torch does so to what stands for the shards alone, which stay.

    Raises:
        Unsupported: they are a parameter's.
    """
    own, other = to_local(tensor), to_local(value)
    changes = own.data_ptr() != other.data_ptr() or own.shape != other.shape
    kept = (own.dtype, own.device) == (other.dtype, other.device)  # as where a model is moved
    if isinstance(tensor, torch.nn.Parameter) and changes and kept:
        raise Unsupported(
            "A parameter in shards keeps them whatever its `data` is set to. Received: a parameter "
            f"of shape {tuple(tensor.shape)}. Write into it: `parameter.data.copy_(value)`, and "
            "keep what it was before by `parameter.data.clone()`; or use 'mirrored'."
        )
    _DATA.__set__(tensor, value)


def _in_place(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Change the first argument. Of two that are cut alike, each rank changes what it has: that is
    an optimizer's step, and quicker than torch's way."""
    first, second = args[0], args[1]
    if not isinstance(first, DTensor):
        return _made(operation, args, kwargs)
    if _ordinary(second, first):
        second = _cut(second, first)
    if _cut_alike(first, second) and not any(isinstance(x, DTensor) for x in args[2:]):
        operation(to_local(first), to_local(second), *args[2:], **kwargs)
        return first
    _refuse_mixed(operation, first, second)
    return past_handlers(DTensor, operation, (first, second, *args[2:]), kwargs)


def _made(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute what an ordinary tensor, or a list of them, becomes of whole ones."""
    if isinstance(args[0], list | tuple) and _several_kinds(args[0]):
        for one, other in zip(args[0], args[1], strict=True):
            operation([one], [other], *args[2:], **kwargs)
        return None
    first, second = (x[0] if isinstance(x, list | tuple) else x for x in args[:2])
    if _number_beside(first, second) or _number_beside(second, first):
        return past_handlers(DTensor, operation, tuple(map(_replicated, args)), kwargs)
    alike = _ordinary(first, second) or _ordinary(second, first)
    asked = torch.is_grad_enabled() and any(
        getattr(x, "requires_grad", False) for x in (first, second)
    )
    if not alike and (asked or not _mixed(first, second)):
        _refuse_mixed(operation, first, second)
        return past_handlers(DTensor, operation, args, kwargs)
    ordinary, part = (second, first) if isinstance(first, DTensor) else (first, second)
    if asked and (part.requires_grad or not ordinary.requires_grad):
        args = (_cut(args[0], second), _cut(args[1], first), *args[2:])
        return past_handlers(DTensor, operation, args, kwargs)
    if alike and not asked:
        _tell_whole()
    return operation(*tree_map(partial(_whole, ordinary.device), args), **kwargs)


def _several_kinds(tensors: Sequence[Any]) -> bool:
    """Tell a list of parameters in shards and of buffers, which are whole."""
    return len({isinstance(x, DTensor) for x in tensors}) > 1


def _drawn(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Draw for the whole, as one device does, and take this rank's shard: by the generator of the
    device that is computed on, wherever shards lie."""
    first = args[0]
    device = torch.device(first.device_mesh.device_type)
    if operation is torch.ops.aten.bernoulli.default:
        whole = to_whole(first).to(device)
    else:
        whole = torch.empty(first.shape, dtype=first.dtype, device=device)
    drawn = shard_like(operation(whole, *args[1:], **kwargs), first)
    if not private.is_in_place(operation):
        return drawn
    to_local(first).copy_(to_local(drawn))
    return first


def _of_parts(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Change a sum that is still in parts, once it is whole: torch makes another tensor of it."""
    first = args[0]
    if all(placement.is_partial() for placement in first.placements):
        to_local(first).copy_(to_whole(first))
        be_whole(first)
    return past_handlers(DTensor, operation, args, kwargs)


def _cut(value: Any, like: Any) -> Any:
    """Return an ordinary tensor in shards; any other value as it is."""
    if not _ordinary(value, like) or value.requires_grad:
        return value
    _check_alike(value, like)
    return shard_like(value, like)


def _number_beside(part: Any, number: Any) -> bool:
    """Tell a sum that is still in parts, and an ordinary number that meets it."""
    return (
        isinstance(part, DTensor)
        and type(number) is torch.Tensor
        and number.dim() == 0
        and any(placement.is_partial() for placement in part.placements)
    )


def _replicated(value: Any) -> Any:
    if not isinstance(value, DTensor):
        return value
    return value.redistribute(placements=_all_of(value))


def _all_of(value: DTensor) -> tuple[Replicate, ...]:
    return tuple(Replicate() for _ in value.placements)


def _whole(device: torch.device, value: Any) -> Any:
    return to_whole(value).to(device) if isinstance(value, DTensor) else value


def _ordinary(one: Any, other: Any) -> bool:
    """Tell an ordinary tensor beside a DTensor of its shape."""
    return (
        isinstance(other, DTensor)
        and isinstance(one, torch.Tensor)
        and not isinstance(one, DTensor)
        and one.dim() > 0
        and one.shape == other.shape
    )


def _cut_alike(one: DTensor, other: Any) -> bool:
    if not isinstance(other, DTensor) or one.shape != other.shape:
        return False
    same = one.placements == other.placements
    return same and not any(placement.is_partial() for placement in one.placements)


def _mixed(*tensors: Any) -> bool:
    """Tell what torch would refuse: a DTensor beside an ordinary tensor of several elements."""
    many = [x for x in tensors if isinstance(x, torch.Tensor) and x.numel() != 1]
    return len({isinstance(x, DTensor) for x in many}) > 1


def _refuse_mixed(operation: OpOverload, *tensors: Any) -> None:
    """Say that in dream's words."""
    if _mixed(*tensors):
        shapes = " and ".join(str(tuple(x.shape)) for x in tensors)
        raise Unsupported(
            "A parameter in shards meets an ordinary tensor outside of the module that gathers it. "
            f"Received: {operation}, of shapes {shapes}. Compute that inside the module's forward, "
            "make the parameter whole by .full_tensor(), or use 'mirrored'."
        )


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
            "The ranks have other values of a tensor that meets one in shards. "
            f"Received: a tensor of shape {tuple(tensor.shape)}. Make it alike by "
            "strategy.communicator.all_reduce or broadcast first."
        )


def _tell_whole() -> None:
    say_once(
        "a copy or an average of the parameters that was begun before the model was split is whole "
        "on every rank, which is exact, and takes its memory; one that is begun after the "
        "optimizer is made is in shards"
    )
