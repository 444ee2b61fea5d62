"""The norm of a gradient that is spread over ranks: each element counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from math import inf
from typing import Any, final

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from dream.adapters.pytorch.private import to_local
from dream.adapters.pytorch.update.gradients import Spread, is_finite
from dream.collectives import Communicator

Groups = tuple[distributed.ProcessGroup, ...]
_SMALL = 1e-6  # as torch's own clipping has it


def clip_to_norm(
    gradients: list[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """Scale the gradients in place so that their global norm is at most `max_norm`; the norm that
    they had. Shape ()."""
    total = global_norm(gradients, norm_type)
    scale = torch.clamp(max_norm / (total + _SMALL), max=1.0)
    for gradient in gradients:
        to_local(gradient).mul_(scale.to(gradient.device, gradient.dtype))
    return total


def gradients_of(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients that there are, each as it is spread when an optimizer steps it."""
    return [_settled(p) for p in parameters if p.grad is not None]


def global_norm(gradients: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norm of all gradients together. Shape ()."""
    if not gradients:
        return torch.zeros(())
    by_groups: dict[Groups, list[torch.Tensor]] = {}
    for gradient in gradients:
        by_groups.setdefault(_spread_over(gradient), []).append(to_local(gradient))
    parts = []
    for groups, locals_ in by_groups.items():
        part = _powers(locals_, norm_type)
        for group in groups:
            op = distributed.ReduceOp.MAX if norm_type == inf else distributed.ReduceOp.SUM
            distributed.all_reduce(part, op, group=group)
        parts.append(part)
    whole = torch.stack([part.to(parts[0].device) for part in parts])
    return whole.amax() if norm_type == inf else whole.sum().pow(1.0 / norm_type)


@final
class Parts(Spread):
    """Every rank has its pieces of some, and others whole. world: all ranks."""

    def __init__(self, world: Communicator) -> None:
        self._world = world.unchecked()  # every rank steps at the same time

    def clip_norm(self, parameters: Sequence[nn.Parameter], largest: float) -> None:
        clip_to_norm(gradients_of(parameters), largest)

    def clip_value(self, parameters: Sequence[nn.Parameter], largest: float) -> None:
        for gradient in gradients_of(parameters):
            to_local(gradient).clamp_(-largest, largest)

    def finite(self, parameters: Sequence[nn.Parameter]) -> bool | None:
        pieces = [to_local(gradient) for gradient in gradients_of(parameters)]
        return finite_over(self._world, pieces)


def finite_over(ranks: Communicator, own: Sequence[torch.Tensor]) -> bool | None:
    """Whether the ranks' tensors are finite; None where no rank has any."""
    counts = torch.tensor([float(not is_finite(own)), float(bool(own))], dtype=torch.float64)
    infinite, some = ranks.all_reduce(counts, "sum").tolist()
    return None if not some else not infinite


def wrap_clip_norm(clip: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`clip_grad_norm_` that knows parts."""

    @wraps(clip)
    def wrapped(
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        listed = _listed(parameters)
        gradients = gradients_of(listed)
        if not any(isinstance(gradient, DTensor) for gradient in gradients):
            return clip(listed, max_norm, norm_type, error_if_nonfinite, foreach)
        if error_if_nonfinite and not (total := global_norm(gradients, norm_type)).isfinite():
            raise RuntimeError(f"The total norm of order {norm_type} is not finite: {total}.")
        return clip_to_norm(gradients, float(max_norm), float(norm_type))

    return wrapped


def wrap_clip_value(clip: Callable[..., None]) -> Callable[..., None]:
    """`clip_grad_value_` that knows parts."""

    @wraps(clip)
    def wrapped(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
        listed = _listed(parameters)
        gradients = gradients_of(listed)
        if not any(isinstance(gradient, DTensor) for gradient in gradients):
            clip(listed, clip_value, foreach)
            return
        for gradient in gradients:
            to_local(gradient).clamp_(-float(clip_value), float(clip_value))

    return wrapped


def _listed(parameters: Any) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _settled(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's gradient, whose ranks' parts are added up if they have not been yet."""
    gradient = parameter.grad
    assert gradient is not None
    if not (isinstance(gradient, DTensor) and isinstance(parameter, DTensor)):
        return gradient
    if gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
        parameter.grad = gradient
    return gradient


def _spread_over(gradient: torch.Tensor) -> Groups:
    """The groups whose ranks hold other elements of it."""
    if not isinstance(gradient, DTensor):
        return ()
    mesh = gradient.device_mesh
    groups = []
    for axis, placement in enumerate(gradient.placements):
        if isinstance(placement, Shard):
            groups.append(mesh.get_group(axis))
        elif not isinstance(placement, Replicate):
            raise RuntimeError(f"A gradient with an unknown placement: {placement}.")
    return tuple(groups)


def _powers(parts: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The sum of |x|^norm_type over all elements, or the largest |x|. Shape ()."""
    held = [torch.linalg.vector_norm(part, norm_type) for part in parts if part.numel()]
    if not held:
        return parts[0].new_zeros(())
    norms = torch.stack(held)
    return norms.amax() if norm_type == inf else norms.pow(norm_type).sum()
