"""Copies of a module, each with tensors of its own: replicas that may run at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeVar, cast, final

import torch
from torch import nn

from dream.adapters.pytorch import buffers
from dream.adapters.pytorch.slot import set_slot

M = TypeVar("M", bound=nn.Module)
Place = Callable[[str], torch.device]
"""Where a copy has a parameter or buffer, by its name in the module."""
Copied = Callable[[str, torch.Tensor], torch.Tensor]
"""A parameter or buffer by its name in the module -> what the copy holds."""


def copy_of(module: M, copied: Copied) -> M:
    """A module of the same classes, whose tensors `copied` gives, each asked for once. Whatever
    else the module holds is shared, as torch's own replicas share it.

    Its parameters may be any tensors: copies that gradients flow back from, or leaves.
    """
    made: dict[int, torch.Tensor] = {}

    def once(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = copied(name, tensor)
        return made[id(tensor)]

    copies = {part: _bare(part) for part in module.modules()}
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        copy = copies[part]
        for name, child in part._modules.items():
            copy._modules[name] = None if child is None else copies[child]
        for name, parameter in part._parameters.items():
            if parameter is not None:
                setattr(copy, name, once(f"{prefix}{name}", parameter))
                copy.__dict__.pop(name, None)
                copy._parameters[name] = cast(nn.Parameter, made[id(parameter)])
            else:
                copy._parameters[name] = None
        for name, buffer in part._buffers.items():
            copy._buffers[name] = None if buffer is None else once(f"{prefix}{name}", buffer)
    return cast(M, copies[module])


def _bare(part: nn.Module) -> nn.Module:
    """A module without tensors. Private to torch, where DataParallel makes its replicas by it; it
    lets recurrent layers keep their lists of weights."""
    copy: nn.Module = part._replicate_for_data_parallel()
    set_slot(copy, None)
    return copy


def on(device: torch.device) -> Place:
    """All of a copy on one device."""
    return lambda _: device


def leaf(place: Place) -> Copied:
    """A copy that gathers gradients of its own."""

    def copied(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(place(name), copy=True).requires_grad_(tensor.requires_grad)

    return copied


def connected(places: Sequence[Place]) -> list[Copied]:
    """Copies whose gradients are the original's, added up in their order."""
    made: dict[int, tuple[torch.Tensor, ...]] = {}

    def of(index: int) -> Copied:
        apart = leaf(places[index])

        def copied(name: str, tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.requires_grad:
                return apart(name, tensor)
            if id(tensor) not in made:
                devices = [place(name) for place in places]
                made[id(tensor)] = _Everywhere.apply(tensor, *devices)  # type: ignore[no-untyped-call]
            return made[id(tensor)][index]

        return copied

    return [of(index) for index in range(len(places))]


@final
class _Everywhere(torch.autograd.Function):
    """A tensor on several devices. One by one, their gradients would be added up in the order in
    which backward comes to them, and sums of three differ in the last bit by that."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *devices: torch.device) -> tuple[torch.Tensor, ...]:
        ctx.device = tensor.device
        return tuple(tensor.to(device, copy=True) for device in devices)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        total = reduce(torch.add, (gradient.to(ctx.device) for gradient in gradients))
        return total, *(None for _ in gradients)


def add_gradients(original: nn.Module, replicas: Sequence[nn.Module]) -> None:
    """The replicas' gradients, added up in their order onto the original's."""
    whose = [[*replica.parameters()] for replica in replicas if replica is not original]
    for parameter, *others in zip(original.parameters(), *whose, strict=True):
        for other in others:
            if other.grad is None:
                continue
            gradient = other.grad.to(parameter.device)
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def settle_buffers(original: nn.Module, replicas: Sequence[nn.Module]) -> None:
    """Running statistics are afterwards the mean over the replicas; other buffers the first's."""
    means = {id(buffer) for buffer in _running(original)}
    whose = [[*replica.buffers()] for replica in replicas]
    with torch.no_grad():
        for buffer, *others in zip(original.buffers(), *whose, strict=True):
            if id(buffer) in means:
                here = [other.to(buffer.device) for other in others]
                buffer.data.copy_(torch.stack(here).mean(dim=0))
            elif others[0] is not buffer:
                buffer.data.copy_(others[0])


def _running(module: nn.Module) -> list[torch.Tensor]:
    return [
        buffer
        for norm in buffers.norms(module)
        if norm.training
        for buffer in norm.buffers(recurse=False)
        if buffer.is_floating_point()
    ]
