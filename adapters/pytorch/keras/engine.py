"""Keras's torch backend across processes: eager tensors, one device a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, final
from weakref import WeakSet

import keras
import numpy as np
import torch
from keras import tree
from torch.autograd.function import once_differentiable

from dream._adapter import Plan
from dream._errors import Unsupported
from dream._log import warn_once
from dream._patches import in_this_context
from dream.adapters.keras import hooks, private
from dream.adapters.keras.block import KerasBlock
from dream.adapters.keras.data import private as private_data
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.engine import Array, Engine, LossGradients
from dream.adapters.keras.private import convert_to_tensor
from dream.adapters.keras.update.auto_recompute import Chooser
from dream.adapters.keras.update.exchange import PartsExchange
from dream.adapters.keras.update.pace import EagerClock
from dream.adapters.pytorch.call_hook import CallHook, hook_of, set_hook
from dream.adapters.pytorch.compression import Exchanged
from dream.adapters.pytorch.data import held
from dream.adapters.pytorch.keras import data, norms
from dream.adapters.pytorch.keras.auto_recompute import MeasuringChooser
from dream.adapters.pytorch.keras.calls import averaged, take_calls
from dream.adapters.pytorch.keras.draws import TorchGenerators, TorchRows, noting_draws, torch_draws
from dream.adapters.pytorch.keras.fitting import FittingSteps
from dream.adapters.pytorch.keras.left_behind import tensors_kept
from dream.adapters.pytorch.loose_parameters import leave_gradients_alone
from dream.adapters.pytorch.module import DistributedModule, ModuleRegistry
from dream.adapters.pytorch.private import version_of
from dream.adapters.pytorch.randomness.current import RowMemory
from dream.adapters.pytorch.randomness.rows import Rows
from dream.adapters.pytorch.update import batch_norm
from dream.adapters.pytorch.update.recompute import again
from dream.collectives import Communicator
from dream.data.alike import other_batches
from dream.strategies.spec import Framework
from dream.update.update import UpdateOptions


def open_block(
    plan: Plan, communicator: Communicator, exchanged: Exchanged | None = None
) -> KerasBlock:
    """Open the block in which Keras models, on torch, are distributed over the communicator's
    ranks. exchanged: how gradients become one, where that is not their mean."""
    engine = TorchEngine(communicator, plan)
    engine.update_options = UpdateOptions.of(plan.options)
    engine.draws_locally = plan.randomness == "local"
    engine.exchange = None if exchanged is None else TorchExchange(exchanged)
    return KerasBlock(engine)


@final
class TorchEngine(Engine):
    """One device a process; the communicator adds up.

    registry: whose modules Keras models are in a torch loop; None where in no one's.
    """

    registry: ModuleRegistry | None = None
    fits = chooses = True

    def __init__(self, communicator: Communicator, plan: Plan) -> None:
        self._deal_to_ranks(communicator, plan)
        self.generators = TorchGenerators()
        self._parted = plan.options.get("input") == "sharded"
        self._adding = communicator.unchecked()  # the same on every rank, at every step
        self._fitting = FittingSteps(self.total)
        self._memory = RowMemory()
        if plan.options.get("shares") == "auto" and self.parts > 1:
            self._follow_speeds(EagerClock())
        self._taken: WeakSet[Any] = WeakSet()
        self._values = 2.0  # of a channel, that statistics were last taken of

    @property
    def framework(self) -> Framework:
        return "torch"

    def total(self, tensors: Sequence[Any]) -> list[Any]:
        if self.pace is not None:
            self.pace.clock.stop(tensors)
        with torch.no_grad():
            native = [convert_to_tensor(t).detach() for t in tensors]
            return list(self._adding.all_reduce(native, "sum"))

    def weigh(self, tensors: Sequence[Any], weight: Any) -> list[Any]:
        with torch.no_grad():
            if weight == 0:
                return [torch.zeros_like(convert_to_tensor(t)) for t in tensors]
            return [convert_to_tensor(t) * weight for t in tensors]

    def keep(self, share: BatchShare, tensors: Sequence[Any]) -> list[Any]:
        return list(tensors) if share.count else [torch.zeros_like(t) for t in tensors]

    def copies(self, variables: Sequence[Any]) -> list[Any]:
        return [v.value.detach().clone() for v in variables]

    def written(self, tensor: Any) -> bool:
        return version_of(tensor) > 0

    def rows(self, batch: Any) -> Any:
        return len(next(t for t in tree.flatten(batch) if t is not None))

    def micros(self, rows: Any) -> Any:
        most = self._fitting.most if self.update_options.fits else self.update_options.micros
        return min(max(rows, 1), most)

    def fitted(self, model: Any, compute: Callable[[], Any], rows: Any) -> Any:
        return self._fitting.run(model, compute, rows) if self.update_options.fits else compute()

    def ratio(self, some: Any, rows: Any) -> Any:
        return some / rows if rows else 1.0

    def fold(
        self, times: Any, compute: Callable[[Any], list[Any]], like: Sequence[Any]
    ) -> list[Any]:
        del like
        sums = [t.detach().clone() for t in compute(0)]
        for index in range(1, times):
            for total, found in zip(sums, compute(index), strict=True):
                total.add_(found.detach())
        return sums

    def moments(
        self, x: Any, axes: Sequence[int], mask: Any, present: Any, worth: Any
    ) -> tuple[Any, Any]:
        mean, variance, number = _global_moments(x, axes, mask, self.total, present, float(worth))
        self._values = float(number)
        return mean, variance

    def norms_of(self, model: Any) -> Sequence[Any]:
        return norms.norms_in(_modules_of(model))

    def synchronise_norms(self, model: Any, moments: Callable[[], Any]) -> None:
        def offered() -> norms.Moments | None:
            whole = moments()
            return None if whole is None else partial(self._moments_for_torch, whole)

        norms.synchronise(self.norms_of(model), offered)

    def _moments_for_torch(self, whole: Callable[..., Any], x: torch.Tensor) -> Any:
        mean, variance = whole(x, [dim for dim in range(x.dim()) if dim != 1], None)
        return mean, variance, self._values

    def differentiable(self, x: Any) -> bool:
        return isinstance(x, torch.Tensor) and x.is_floating_point()

    def recompute(
        self, run: Callable[..., Sequence[Any]], tensors: Sequence[Any], layers: Sequence[Any]
    ) -> Sequence[Any]:
        """Keras's Dropout without a seed draws from torch's own generator. What computes again is a
        thread of torch's own, on a GPU."""
        norms = [norm for layer in layers for norm in batch_norm.norms(layer)]
        found: Sequence[Any] = again(in_this_context(run), norms, *tensors)
        return found

    def chooser(self, model: Any) -> Chooser:
        update_options = self.update_options
        return MeasuringChooser(
            model, update_options.memory_budget, self.communicator, update_options.micros
        )

    def one_hot(self, share: BatchShare) -> list[Any]:
        digests = torch.zeros(self.parts)
        digests[self.rank] = share.digest
        return [digests]

    def same_batch(self, share: BatchShare, digests: Any, tensors: Sequence[Any]) -> list[Any]:
        if share.digest and bool((digests != digests[0]).any()):
            raise other_batches([int(d) for d in digests])
        return list(tensors)

    def arrays(self, source: Arrays) -> Iterable[Any]:
        return data.of_arrays(source, self.rank, self.divided)

    def batches(self, source: Batches) -> Iterable[Any]:
        if self._parted:
            raise Unsupported(
                "Streams are read in parts in torch's own loops. Received: input='sharded' and a "
                "Keras fit over batches that come one after the other. Remove input=."
            )
        return data.of_batches(source, self.rank, self.divided, mixed=self.mixed)

    def example(self, source: Arrays | Batches) -> Any:
        return data.example(source)

    def looping(self) -> AbstractContextManager[Any]:
        return held.leave_loaders_alone()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        with leave_gradients_alone(), held.taking_a_step():
            yield

    def applying(self) -> AbstractContextManager[Any]:
        return torch.no_grad()

    def adopt_model(self, model: Any) -> None:
        private_data.read_no_batch_to_build(model)
        if self.registry is not None:
            take_calls(model, self, self.registry)

    def averaged(self, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
        return self.registry is not None and averaged(self.registry, gradients, variables)

    def take_over(self, model: Any) -> None:
        """A Keras model is a torch module too, which the block would hand to DDP: also where a
        callback has called it since, at some step."""
        if model in self._taken and not (self.registry and self.registry.roots):
            return
        self._taken.add(model)
        for part in _modules_of(model):
            held = hook_of(part)
            if isinstance(held, DistributedModule):
                held.release()
                held.registry.roots.discard(held)
            if isinstance(held, CallHook):
                set_hook(part, None)

    def noting_draws(self, model: Any) -> AbstractContextManager[list[bool]]:
        return noting_draws(model)

    @contextmanager
    def trying(self, model: Any, rows: slice, total: int) -> Iterator[None]:
        drawn = Rows(rows, len(range(total)[rows]), total)
        with (
            torch_draws(drawn, RowMemory()),
            held.trying_a_step(),
            tensors_kept(_modules_of(model)),
        ):
            yield

    def rows_of(self, share: BatchShare) -> TorchRows:
        return TorchRows(share, self.rank, self.parts)

    @contextmanager
    def drawing(self, share: BatchShare) -> Iterator[None]:
        rows = self.rows_of(share)
        before = torch.get_rng_state() if self.update_options.accumulates else None
        with hooks.drawn_for(rows), torch_draws(rows.rows, self._memory):
            yield
        if before is not None and not torch.equal(before, torch.get_rng_state()):
            warn_once(
                "torch's own functions draw for each micro-batch by itself, so that masks and "
                "noise are not those of a whole batch on one device. Received: "
                f"accumulate={self.update_options.micros}. Remove accumulate for those"
            )


def _modules_of(model: Any) -> list[torch.nn.Module]:
    """Return a Keras model, its layers, and torch's modules within those."""
    return list({id(m): m for layer in private.layers_of(model) for m in layer.modules()}.values())


@final
class TorchExchange(PartsExchange):
    """An exchange of torch's gradients, for those of a Keras model."""

    def __init__(self, exchanged: Exchanged) -> None:
        self._exchanged = exchanged

    def __call__(self, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            found = [convert_to_tensor(g).detach().clone() for g in gradients]
            self._exchanged.write_global([v.value for v in variables], found)
        return found


_Total = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def _global_moments(
    x: torch.Tensor, axes: Sequence[int], mask: Any, total: _Total, present: Any, worth: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return mean and variance over the samples of all ranks, each of shape (channels,), and how
    many values of a channel there are.

    mask: which places count, of x's shape without its last dim; None for all. total: the sum over
    the ranks. present: 0 where this rank's samples do not count. worth: what gradients of this
    rank are multiplied by later; those of others are divided by it here.
    """
    weights = torch.full((), float(present > 0), dtype=x.dtype, device=x.device)
    if mask is not None:
        weights = weights * mask.to(x.dtype)[..., None]
    spare = 0.0 if mask is None else keras.backend.epsilon()
    apply: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = _Moments.apply
    return apply(x, tuple(axes), weights, spare, total, worth)


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        axes: tuple[int, ...],
        weights: torch.Tensor,
        spare: float,
        total: _Total,
        worth: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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
        ctx.mark_non_differentiable(number)
        return centre, (spread / number).clamp(min=0.0).to(x.dtype), number

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, weights, centre, number = ctx.saved_tensors
        mine = torch.cat(gradients[:2]) * ctx.worth
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
    """Return (number, sum, sum of squares) of this rank by channel, in float64."""
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


def differentiate(
    call: Callable[[], Sequence[Any]], variables: Sequence[Any], loss_gradients: LossGradients
) -> list[Array | None]:
    """Return the gradient by each keras.Variable, None where none flows. call: gives outputs."""
    sources = [variable.value for variable in variables]
    outputs = list(call())
    found = loss_gradients([_array(x) for x in outputs])
    flowing = [
        (x, torch.from_numpy(np.array(s)).to(x))
        for x, s in zip(outputs, found, strict=True)
        if x.requires_grad
    ]
    if not sources or not flowing:
        return [None] * len(sources)
    xs, grads = zip(*flowing, strict=True)
    gradients = torch.autograd.grad(xs, sources, grads, allow_unused=True)
    return [None if g is None else _array(g) for g in gradients]


def _array(x: torch.Tensor) -> Array:
    plain = x.detach().cpu()
    return np.array(plain.float() if plain.dtype == torch.bfloat16 else plain)
