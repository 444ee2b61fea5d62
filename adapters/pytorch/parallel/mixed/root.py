"""A distributed module in a job of two frameworks: no DDP, but one sum at the end of backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from dream._errors import ConfigurationError
from dream.adapters.pytorch import buffers
from dream.adapters.pytorch.model_description import model as canonical
from dream.adapters.pytorch.model_description.called import order_of_calls
from dream.adapters.pytorch.parallel.mixed.backward_sum import BackwardSum
from dream.adapters.pytorch.reducing import Forward, Reducing, claim_parts, training_call
from dream.mixed import consistency
from dream.mixed.consistency import Account
from dream.mixed.order import InOrder
from dream.mixed.resync import Resync, Resyncs

if TYPE_CHECKING:
    from dream.adapters.pytorch.parallel.ddp.modules import Modules


@final
class MixedRoot(Reducing):
    """resyncs: of the block. loss: what backward starts from."""

    def __init__(
        self,
        module: nn.Module,
        room: Modules,
        inner: Forward | None,
        *,
        resyncs: Resyncs,
        loss: Callable[[], torch.Tensor | None],
    ) -> None:
        super().__init__(module, room, inner)
        self._resyncs = resyncs
        self._loss = loss
        self._made: tuple[BackwardSum, Resync] | None = None
        self._agreed: tuple[bool, ...] = ()
        self._counted = -1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not training_call(self.room):
            return self.inner(*args, **kwargs)
        return self.call_counted(self.samples((*args, *kwargs.values())), args, kwargs)

    def call_counted(self, count: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A forward pass whose loss will be the mean over `count` things."""
        total, resync = self._ready(args, kwargs)
        if total.steps != self._counted:
            self._counted = total.steps
            resync.before_step()
        total.arm(count)
        return self._call(self.inner, args, kwargs, empty=count == 0.0)

    @property
    def mean_loss(self) -> torch.Tensor:
        """The global one of the last backward. Shape ()."""
        assert self._made is not None
        return self._made[0].mean_loss

    @property
    def trained(self) -> list[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def prepare(self) -> None:
        """The first batch shows in which order layers are called; it is waited for."""

    def weigh_by_hand(self, count: float) -> None:
        if self._made is not None:
            self._made[0].recount(count)

    def release(self) -> None:
        if self._made is not None:
            self._made[0].stop()
            self._made = None
            self.backwards.stop()

    def samples(self, inputs: tuple[Any, ...]) -> float:
        """How many samples this rank has of a batch."""
        known = self.room.shares.count(inputs)
        if known is not None:
            return float(known)
        sizes = (len(x) for x in tree_leaves(inputs) if isinstance(x, torch.Tensor) and x.dim())
        return float(next(sizes, 1))

    def _ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BackwardSum, Resync]:
        changing = self._changing()
        if self._made is None:
            self._agreed = changing
            self._made = self._start(args, kwargs)
        if changing != self._agreed:
            raise ConfigurationError(
                "What is trained has changed, and ranks of another framework cannot know. "
                "Received: requires_grad of a parameter, or train() of a normalisation, of "
                f"{type(self.module).__name__} set after the first step. Freeze layers before it, "
                "on every rank."
            )
        return self._made

    def _changing(self) -> tuple[bool, ...]:
        """What a step changes: parameters, and running statistics."""
        norms = buffers.norms(self.module)
        return (
            *(p.requires_grad for p in self.module.parameters()),
            *(norm.training for norm in norms),
        )

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BackwardSum, Resync]:
        """Agree with the other ranks, and take rank 0's weights."""
        called = order_of_calls(self.module, self.inner, args, kwargs)
        order = InOrder(canonical.describe(self.module, called), canonical.OPS)
        known = canonical.tensors(self.module)
        parameters = {
            name: value
            for name in order.names
            if isinstance(value := known[name], nn.Parameter) and value.requires_grad
        }
        running = self._running(known, order)
        layout = order.layout(order.names)
        summed = [*order.layout([*parameters]), *order.layout([*running])]
        account = Account("torch", "step", layout, summed, states=None)
        consistency.agree(self.room.communicator, account)
        self._take_rank_0s(order)
        claim_parts(self)
        self.room.begun(self.module)
        self.backwards.watch(self.trained[0])
        total = BackwardSum(order, parameters, running, self.room.communicator, self._loss)
        communicator = self.room.communicator
        return total, self._resyncs.add(communicator, lambda: self._take_rank_0s(order))

    def _running(self, known: dict[str, torch.Tensor], order: InOrder) -> dict[str, torch.Tensor]:
        """The running statistics that a step changes."""
        changed = {b.data_ptr() for b in buffers.running(buffers.norms(self.module))}
        return {
            name: known[name].data
            for name in order.names
            if not isinstance(known[name], nn.Parameter) and known[name].data_ptr() in changed
        }

    def _take_rank_0s(self, order: InOrder) -> float:
        """How far this rank's values were from them."""
        known = canonical.tensors(self.module)
        own = {name: known[name].detach() for name in order.names}
        communicator = self.room.communicator
        mine = order.listed(own, "value")
        first = communicator.broadcast(mine)
        if communicator.rank == 0:
            return 0.0
        drift = max(_apart(a, b) for a, b in zip(mine, first, strict=True))
        for name, value in order.named(first, order.names, "value").items():
            own[name].copy_(value)
        return drift


def _apart(own: torch.Tensor, first: torch.Tensor) -> float:
    """The largest difference of two tensors, in times of the largest value, or of 1."""
    if not own.numel() or not own.is_floating_point():
        return 0.0
    return float((own - first).abs().max() / first.abs().max().clamp(min=1.0))
