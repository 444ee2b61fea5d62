"""BatchNorm over the whole batch: its statistics are those of all samples, wherever they are.
On the CPU too, where torch's own needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from dream._errors import ConfigurationError
from dream._log import logger
from dream.adapters.pytorch.call_hook import CallHook, Wrapper, called_with, hook_of, unwrapped
from dream.adapters.pytorch.private import (
    BatchNorm,
    NormBase,
    check_input_dim,
    recomputing,
)
from dream.collectives import Communicator


def norms(module: nn.Module) -> list[nn.Module]:
    """The normalisations that keep running statistics."""
    return [m for m in module.modules() if isinstance(m, NormBase) and m.track_running_stats]


def running(norms: list[nn.Module]) -> list[torch.Tensor]:
    """The statistics that a training step changes: floating point buffers of the norms in
    training mode, detached, since backward keeps them without using their values."""
    return [
        buffer.data
        for norm in norms
        if norm.training
        for buffer in norm.buffers(recurse=False)
        if buffer.is_floating_point()
    ]


def tell_local_statistics(module: nn.Module) -> None:
    """Say in a line that normalising over a rank's own share is not what one device does."""
    batch = [m for m in module.modules() if isinstance(m, BatchNorm)]
    if any(not isinstance(norm, nn.SyncBatchNorm) for norm in batch):
        logger.info(
            "%s normalises each rank's share by itself (BatchNorm), so its numbers cannot equal "
            "those of one device",
            type(module).__name__,
        )


def wide(x: torch.Tensor) -> torch.Tensor:
    """Return x in the type it is normalised in: float32 where it is of half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def along(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Shape a value for each channel, to be combined with x."""
    return values.reshape(1, -1, *(1 for _ in range(x.dim() - 2)))


def number(of: torch.Tensor) -> float:
    """A count that all ranks summed up."""
    return float(of)


def check_several(count: float, x: torch.Tensor) -> None:
    """Refuse to normalise by a single value of a channel. count: of all ranks together."""
    if count <= 1.0:
        raise ConfigurationError(
            "A batch normalisation needs two values of a channel. Received: an input of shape "
            f"{tuple(x.shape)} on this rank, and {count:.0f} values on all. Pass drop_last=True, "
            "or choose a batch_size that leaves two samples for the last batch."
        )


@torch.no_grad()
def take_in(norm: BatchNorm, mean: torch.Tensor, variance: torch.Tensor) -> None:
    """Into the running statistics, as torch's own does. variance: of a sample, by n - 1."""
    if norm.running_mean is None or norm.running_var is None:
        return
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    momentum = norm.momentum
    if momentum is None:
        momentum = 1.0 / number(norm.num_batches_tracked)
    for running, value in ((norm.running_mean, mean), (norm.running_var, variance)):
        running.data.lerp_(value.to(running.device, running.dtype), momentum)


Weight = Callable[[], float]
Moments = tuple[torch.Tensor, torch.Tensor, float]
"""Mean and variance, shape (channels,) each, and the values of a channel that they are of."""


def moments_of(given: Sequence[torch.Tensor]) -> Moments:
    """Find those of several inputs together, by operations that gradients flow back through. Each
    one's own are about its own mean, which keeps the digits of small spreads."""
    first = given[0]
    dims = [dim for dim in range(first.dim()) if dim != 1]
    total = sum(x.numel() // x.shape[1] for x in given)
    check_several(total, first)
    given = [x for x in given if len(x)]
    shares = [x.numel() // x.shape[1] / total for x in given]
    own = [torch.var_mean(wide(x), dims, correction=0) for x in given]
    spreads, means = (
        torch.stack([each.double().to(first.device) for each in side])
        for side in zip(*own, strict=True)
    )
    weights = spreads.new_tensor(shares).unsqueeze(1)
    mean = (weights * means).sum(0)
    variance = (weights * (spreads + (means - mean).square())).sum(0)
    dtype = own[0][0].dtype
    return mean.to(dtype), variance.to(dtype), total


def normalised(norm: BatchNorm, x: torch.Tensor, by: Moments) -> torch.Tensor:
    """Normalise an input, likewise, and take the moments into the running statistics."""
    mean, variance, count = by
    take_in(norm, mean, variance * (count / (count - 1.0)))
    mean, scale = mean.to(x.device), (variance.to(x.device) + norm.eps).rsqrt()
    normal = (wide(x) - along(mean, x)) * along(scale, x)
    if norm.affine:
        normal = normal * along(norm.weight, x) + along(norm.bias, x)
    return normal.to(x.dtype)


def synchronise(
    module: nn.Module,
    before: Mapping[nn.Module, Synchronised],
    among: Communicator,
    trains: Callable[[], bool],
    copies: Callable[[], int],
    weight: Weight = lambda: 1.0,
) -> dict[nn.Module, Synchronised]:
    """Have the BatchNorms of a root's module see the samples of all ranks, from its training calls
    on. trains: whether a part is called by one. copies: how many ranks have each sample. weight:
    what this rank's gradients are multiplied by after backward."""

    def taken(norm: BatchNorm) -> Synchronised:
        slot = hook_of(norm)
        assert isinstance(slot, CallHook)
        inner = unwrapped(slot.inner, (Wrapper,))  # of another root, whose module is now a part
        slot.inner = made = Synchronised(norm, inner, among, trains, copies, weight)
        return made

    kept = {norm: made for norm, made in before.items() if _taking(norm) is made}
    return {norm: kept.get(norm) or taken(norm) for norm in _norms(module)}


def taking(made: Mapping[nn.Module, Synchronised]) -> bool:
    """Whether these still have the calls of their norms. Another root's have, once a module that is
    made of the same parts was called, or sharded, as `net[:3]` beside `net`."""
    return all(_taking(norm) is each for norm, each in made.items())


def _taking(norm: nn.Module) -> Synchronised | None:
    inner = getattr(hook_of(norm), "inner", None)
    while isinstance(inner, Wrapper) and not isinstance(inner, Synchronised):
        inner = inner.inner
    return inner if isinstance(inner, Synchronised) else None


def _norms(module: nn.Module) -> list[BatchNorm]:
    """Those in a module that normalise by a batch, and not already over all ranks."""
    refuse_compiled(module)
    found = (m for m in module.modules() if isinstance(m, BatchNorm))
    return [m for m in found if not isinstance(m, nn.SyncBatchNorm)]


def compiled(module: nn.Module) -> list[str]:
    """The normalisations by a batch that `torch.jit` has compiled, which no other function runs."""
    parts = (m for m in module.modules() if isinstance(m, torch.jit.ScriptModule))
    return [m.original_name for m in parts if m.original_name.startswith("BatchNorm")]


def refuse_compiled(module: nn.Module) -> None:
    """
    Raises:
        ConfigurationError: a normalisation is compiled, which takes a rank's share for a batch.
    """
    if found := compiled(module):
        raise ConfigurationError(
            "A BatchNorm that torch.jit has compiled normalises each rank's share by itself. "
            f"Received: {found[0]} in {type(module).__name__}. Train the module as it was, and "
            "compile it after training, or pass sync_batch_norm=False."
        )


@final
@dataclass(frozen=True, slots=True)
class _Over:
    """The statistics that a batch is normalised by: of all ranks' samples, `count` of them."""

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
class Synchronised(Wrapper):
    """The forward pass of one BatchNorm.

    inner: its own, for calls that are no training. training_call: whether this is one. copies: how
    many ranks have each of its samples.
    """

    def __init__(
        self,
        norm: BatchNorm,
        inner: Callable[..., Any],
        communicator: Communicator,
        training_call: Callable[[], bool],
        copies: Callable[[], int],
        weight: Weight,
    ) -> None:
        super().__init__(inner)
        self._norm, self._among = norm, communicator.unchecked()
        self._training_call, self._copies, self._weight = training_call, copies, weight
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._left = False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        norm = self._norm
        if not (norm.training and self._training_call()):
            result: torch.Tensor = self.inner(x)
            return result
        output: torch.Tensor = called_with(norm, self._normalise, self.inner, x)
        return output

    def _normalise(self, x: torch.Tensor) -> torch.Tensor:
        norm = self._norm
        check_input_dim(norm, x)
        mean, variance, count = statistics(x.detach(), self._among)
        samples = count / self._copies()
        check_several(samples, x)
        if not recomputing():
            self._seen.append((mean, variance * (samples / (samples - 1.0))))
        over = _Over(mean, variance, norm.eps, count, self._among, self._weight)
        apply: Callable[..., torch.Tensor] = _Normalise.apply
        return apply(x, norm.weight, norm.bias, over)

    def leave_graphs(self) -> None:
        """Be called where the model around it is compiled: a compiler goes straight to a module's
        forward, past what takes its calls, unless it has hooks."""
        if not self._left:
            self._left = True
            self._norm.register_forward_pre_hook(_seen)
            self._normalise = torch.compiler.disable(self._normalise)  # type: ignore[method-assign]
            torch.compiler.reset()  # graphs of modules like this one would be taken for it

    def settle(self) -> None:
        """The running statistics take in what the last call saw, on every rank the same."""
        seen, self._seen = self._seen, []
        for mean, variance in seen:
            take_in(self._norm, mean, variance)


def statistics(x: torch.Tensor, among: Communicator) -> Moments:
    """Find those of all ranks. A rank's own are about its own mean, which keeps the digits of small
    spreads; they are summed in float64."""
    own = float(x.numel() // x.shape[1])
    sums = torch.zeros(1 + 2 * x.shape[1], dtype=torch.float64, device=x.device)
    if own:
        sums[0] = own
        mean, spread = torch.ops.aten.batch_norm_update_stats(_rows(x), None, None, 0.0)
        mean = mean.double()
        sums[1:] = own * torch.cat([mean, spread.double() + mean.square()])
    total = among.all_reduce(sums, "sum")
    count = number(total[0])
    mean, squares = (total[1:] / count).chunk(2)
    variance = (squares - mean.square()).clamp(min=0.0)
    dtype = wide(x).dtype
    return mean.to(dtype), variance.to(dtype), count


def _seen(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Do nothing: a module's hook."""


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
