"""Mean and variance over the samples of all ranks, and their gradient, for Keras on torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch
from torch.autograd.function import once_differentiable

Total = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def global_moments(
    x: torch.Tensor, axes: Sequence[int], mask: Any, total: Total, present: Any, worth: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each of shape (channels,).

    mask: which places count, of x's shape without its last dim; None for all. total: the sum over
    the ranks. present: 0 where this rank's samples do not count. worth: what gradients of this
    rank are multiplied by later; those of others are divided by it here.
    """
    weights = torch.full((), float(present > 0), dtype=x.dtype, device=x.device)
    if mask is not None:
        weights = weights * mask.to(x.dtype)[..., None]
    spare = 0.0 if mask is None else keras.backend.epsilon()
    apply: Callable[..., tuple[torch.Tensor, torch.Tensor]] = _Moments.apply
    return apply(x, tuple(axes), weights, spare, total, worth)


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        axes: tuple[int, ...],
        weights: torch.Tensor,
        spare: float,
        total: Total,
        worth: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        along = [1 if i in axes else -1 for i in range(x.dim())]
        count, first, second = _sums(x, weights, axes, along)
        (sums,) = total([torch.cat([count[None], first, second])])
        number = sums[0] + spare
        first, second = sums[1:].chunk(2)
        mean = first / number
        spread = second - 2.0 * mean * first + sums[0] * mean * mean
        centre = mean.to(x.dtype)
        ctx.save_for_backward(x, weights, centre, number.to(x.dtype))
        ctx.along, ctx.total, ctx.worth = along, total, worth
        return centre, (spread / number).clamp(min=0.0).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[Any, ...]:
        x, weights, centre, number = ctx.saved_tensors
        mine = torch.cat(slopes) * ctx.worth
        if not bool(weights.any()) or not ctx.worth:
            mine = torch.zeros_like(mine)
        (theirs,) = ctx.total([mine])
        if not ctx.worth:
            return torch.zeros_like(x), None, None, None, None, None
        shift, stretch = (theirs / ctx.worth).chunk(2)
        spread = (x - centre.reshape(ctx.along)) * (2.0 * stretch).reshape(ctx.along)
        own = weights * (shift.reshape(ctx.along) + spread) / number
        return own, None, None, None, None, None


def _sums(
    x: torch.Tensor, weights: torch.Tensor, axes: tuple[int, ...], along: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(number, sum, sum of squares) of this rank by channel, in float64."""
    if weights.dim():
        number = weights.sum()
    else:
        places = 1
        for axis in axes:
            places *= x.shape[axis]
        number = weights * places
    mean = (x * weights).sum(axes) / number.clamp(min=1.0)
    spread = (weights * (x - mean.reshape(along)).square()).sum(axes)
    count, mean, spread = (t.double() for t in (number, mean, spread))
    return count, count * mean, spread + count * mean * mean
