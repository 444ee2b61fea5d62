"""BatchNorm over the whole batch: its statistics are those of all ranks' samples, however many each
has. On the CPU too, where torch's own needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from dream.adapters.pytorch.reducing import recomputing
from dream.adapters.pytorch.slot import Around, Slot, called_with, slot_of, unwrapped
from dream.adapters.pytorch.update import moments
from dream.adapters.pytorch.update.moments import along, check_several, take_in, wide
from dream.collectives import Communicator

Weight = Callable[[], float]


def synchronise(
    module: nn.Module,
    before: Mapping[nn.Module, Synchronised],
    among: Communicator,
    trains: Callable[[], bool],
    weight: Weight,
) -> dict[nn.Module, Synchronised]:
    """Have the BatchNorms of a root's module see the samples of all ranks, from its training calls
    on. trains: whether a part is called by one. weight: what this rank's gradients are multiplied
    by after backward."""

    def taken(norm: _BatchNorm) -> Synchronised:
        slot = slot_of(norm)
        assert isinstance(slot, Slot)
        inner = unwrapped(slot.inner, (Around,))  # of another root, whose module is now a part
        slot.inner = made = Synchronised(norm, inner, among, trains, weight)
        return made

    return {norm: before.get(norm) or taken(norm) for norm in _norms(module)}


def _norms(module: nn.Module) -> list[_BatchNorm]:
    """Those in a module that normalise by a batch, and not already over all ranks."""
    found = (m for m in module.modules() if isinstance(m, _BatchNorm))
    return [m for m in found if not isinstance(m, nn.SyncBatchNorm)]


@final
@dataclass(frozen=True, slots=True)
class _Over:
    """What a batch is normalised by: statistics of all ranks' samples, `count` of them."""

    mean: torch.Tensor
    variance: torch.Tensor
    eps: float
    count: float
    among: Communicator
    weight: Weight

    @property
    def scale(self) -> torch.Tensor:
        return (self.variance + self.eps).rsqrt()

    def normalise(
        self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """In one operation, without statistics of its own."""
        mean, variance = self.mean, self.variance
        normal, _, _ = torch.native_batch_norm(
            x, weight, bias, mean, variance, False, 0.0, self.eps
        )
        return normal

    def sums(self, gradient: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Over this rank's samples: of the gradients, and of these times the normalised x."""
        about = wide(x) - along(self.mean, x)
        plain, scaled = _sum(gradient, about.dtype), _sum(about.mul_(gradient), about.dtype)
        return plain, scaled * self.scale


@final
class Synchronised(Around):
    """The forward pass of one BatchNorm.

    inner: its own, for calls that are no training. training_call: whether this is one.
    """

    def __init__(
        self,
        norm: _BatchNorm,
        inner: Callable[..., Any],
        communicator: Communicator,
        training_call: Callable[[], bool],
        weight: Weight,
    ) -> None:
        super().__init__(inner)
        self._norm, self._among = norm, communicator.unchecked()
        self._training_call, self._weight = training_call, weight
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        norm = self._norm
        if not (norm.training and self._training_call()):
            result: torch.Tensor = self.inner(x)
            return result
        output: torch.Tensor = called_with(norm, self._normalise, self.inner, x)
        return output

    def _normalise(self, x: torch.Tensor) -> torch.Tensor:
        norm = self._norm
        norm._check_input_dim(x)
        mean, variance, count = self._statistics(x.detach())
        check_several(count, x)
        if not recomputing():
            self._seen.append((mean, variance * (count / (count - 1.0))))
        over = _Over(mean, variance, norm.eps, count, self._among, self._weight)
        apply: Callable[..., torch.Tensor] = _Normalise.apply
        return apply(x, norm.weight, norm.bias, over)

    def settle(self) -> None:
        """The running statistics take in what the last call saw, on every rank the same."""
        seen, self._seen = self._seen, []
        for mean, variance in seen:
            take_in(self._norm, mean, variance)

    def _statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
        """(mean, variance, samples) of all ranks. A rank's own are about its own mean, which keeps
        the digits of small spreads; they are summed in float64."""
        number = float(x.numel() // x.shape[1])
        sums = torch.zeros(1 + 2 * x.shape[1], dtype=torch.float64, device=x.device)
        if number:
            sums[0] = number
            mean, spread = torch.ops.aten.batch_norm_update_stats(_rows(x), None, None, 0.0)
            mean = mean.double()
            sums[1:] = number * torch.cat([mean, spread.double() + mean.square()])
        total = self._among.all_reduce(sums, "sum")
        count = moments.number(total[0])
        mean, squares = (total[1:] / count).chunk(2)
        variance = (squares - mean.square()).clamp(min=0.0)
        dtype = wide(x).dtype
        return mean.to(dtype), variance.to(dtype), count


class _Normalise(torch.autograd.Function):
    """(x - mean) * scale * weight + bias, where mean and scale depend on all ranks' samples.

    Keeps x, which other layers often keep as well, and nothing else of its size.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        over: _Over,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.over = over
        return over.normalise(x, _like(weight, over.mean), _like(bias, over.mean))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """A rank's gradients are weighed after backward, so what others send is divided by that."""
        x, weight = ctx.saved_tensors
        over: _Over = ctx.over
        plain, scaled = over.sums(gradient, x)
        own = _like(scaled, weight), _like(plain, weight)
        counts = over.weight()
        sums = torch.cat([plain, scaled])
        sums = sums * counts if counts else torch.zeros_like(sums)
        total = over.among.all_reduce(sums, "sum")
        if not counts:
            return torch.zeros_like(x), *own, None
        first, second = (total / (counts * over.count)).chunk(2)
        scale = over.scale if weight is None else over.scale * weight.to(over.mean.dtype)
        others = over.normalise(wide(x), -scale * second, -scale * first)
        return others.addcmul_(gradient, along(scale, x)).to(x.dtype), *own, None


def _like(values: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    """None where one of them is."""
    return None if values is None or other is None else values.to(other.dtype)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Each channel's values side by side: torch adds up others one by one, and loses digits."""
    values = wide(x)
    return values.contiguous() if x.dim() > 2 else values.t().contiguous().unsqueeze(0)


def _sum(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Over all dims but that of the channels. Shape (channels,)."""
    return x.sum(dim=[dim for dim in range(x.dim()) if dim != 1], dtype=dtype)
