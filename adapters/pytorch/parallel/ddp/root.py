"""A distributed module that DDP reduces."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from dream.adapters.pytorch import buffers
from dream.adapters.pytorch.parallel.ddp.runner import Runner, forward_of, scale_gradients
from dream.adapters.pytorch.reducing import (
    Forward,
    Reducing,
    claim_parts,
    recomputing,
    training_call,
)
from dream.adapters.pytorch.slot import set_slot
from dream.adapters.pytorch.update.batch_norm import Synchronised, synchronise
from dream.adapters.pytorch.update.recompute import recompute

if TYPE_CHECKING:
    from dream.adapters.pytorch.parallel.ddp.modules import Modules

_requires_grad = attrgetter("requires_grad")


@final
class Root(Reducing):
    """Takes the calls of one module and runs them under DDP."""

    def __init__(self, module: nn.Module, room: Modules, inner: Forward | None) -> None:
        super().__init__(module, room, inner)
        self._ddp: DistributedDataParallel | None = None
        self._runner = Runner(self, searched=room.searches)
        set_slot(self._runner, None)  # it is made in the block, but is no user's
        self._forward: Forward = self._runner.forward
        self._parameters: list[nn.Parameter] = []
        self._own: list[nn.Parameter] = []
        self._reduced: tuple[int, ...] = ()
        self._trained: tuple[bool, ...] = ()
        self._generation = -1
        self._handles: list[RemovableHandle] = []
        self._held: list[RemovableHandle] = []
        self._weight, self._silent = 1.0, False
        self._completes = True
        self._synced: dict[nn.Module, Synchronised] = {}
        self._norms = buffers.norms(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        precision = self.room.precision
        if not training_call(self.room):
            return self._beside(args, kwargs)
        if precision is not None and precision.scaling is not None:
            precision.scaling.loop_calls()
        self._set_carrier(None)
        share = self.room.shares.of((*args, *kwargs.values()))
        if self.room.updates is not None:
            self._completes = self.room.updates.begin(share)
        self.weigh(1.0 if share is None else share.weight)
        return self._run(args, kwargs)

    def call_with_carrier(
        self, args: tuple[Any, ...], *, empty: bool, first: bool = True, last: bool = True
    ) -> tuple[Any, torch.Tensor]:
        """The module's output, and a second tensor to start backward from: the gradient given
        there comes back as `carried`. The caller weighs the loss itself, save on an empty batch,
        whose loss may be nan.

        first, last: of the micro-batches of an update; only the last one's backward reduces.
        """
        carrier = self._runner.carrier
        if carrier is None:
            carrier = self._new_carrier()
            self._set_carrier(carrier)
        self.weigh(0.0 if empty else 1.0, counted=True)
        if first:
            carrier.grad = None
        self._completes = last
        output, carried = self._run(args, {})
        return output, carried

    @property
    def carried(self) -> torch.Tensor:
        """The mean over the ranks of what was given to the last backward. Shape ()."""
        carrier = self._runner.carrier
        assert carrier is not None
        assert carrier.grad is not None
        return carrier.grad.clone()  # the gradient itself is a view of a bucket, soon overwritten

    def prepare(self) -> None:
        """DDP is made at the first call: by then it is known whether a carrier goes along, and a
        second DDP would keep the first one's buckets beside its own."""
        self._claim()
        self._own = self._untaken()
        if self._own:
            self.room.settle(self.module)
            self.room.begun(self.module)

    def weigh_by_hand(self, count: float) -> None:
        """The loss is weighed already, so shares count as equal; but nothing at all must not
        bring a nan."""
        self.weigh(0.0 if count == 0.0 else 1.0, counted=True)

    def weigh(self, weight: float, *, counted: bool = False) -> None:
        """What the next gradient of this module counts for. counted: the loss is multiplied by
        that already; where BatchNorm sees all ranks' samples, those of a rank whose loss counts
        for nothing have gradients still, and only what comes from that loss is nothing."""
        self._refresh()
        silent = counted and weight == 0.0 and bool(self._synced)
        if (weight, silent) != (self._weight, self._silent):
            self._unweigh()
            self._weight, self._silent = weight, silent
            if silent:
                carrier = self._runner.carrier
                self._handles = scale_gradients([] if carrier is None else [carrier], 0.0)
            elif weight != 1.0:
                self._handles = scale_gradients(self.trained, weight)

    @property
    def loss_weight(self) -> float:
        """What the gradient of the last call counts for."""
        return self._weight

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that this module's DDP reduces, the carrier among them."""
        carrier = self._runner.carrier
        return self._own if carrier is None else [*self._own, carrier]

    def release(self) -> None:
        self._unweigh()
        for handle in self._held:
            handle.remove()
        self._held = []
        if self._ddp is not None:
            self._ddp._remove_autograd_hooks()
            vars(self._ddp).clear()  # it refers to itself, and its buckets are as large as a model
            self._ddp = None
            self._forward = self._runner.forward
        self.backwards.stop()

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        forward = self._forward if self._completes else self._runner.forward
        empty = self._weight == 0.0

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(forward, args, kwargs, empty=empty)

        output = self._cast(call, args, kwargs)
        if self._synced:
            for x in tree_leaves(output):
                if isinstance(x, torch.Tensor) and x.requires_grad and not x.is_leaf:
                    x.register_hook(self._hushed)
        if self._completes:
            self._average_running()
        return output

    def _beside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that is no training: to evaluate, inside another module, or by a backward pass
        that repeats one."""
        precision = self.room.precision
        if precision is None or self.room.inside:
            return self.inner(*args, **kwargs)
        if recomputing():
            return precision.call(self.inner, args, kwargs)
        return precision.call_beside(self.module, self.inner, args, kwargs)

    def _cast(self, call: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        precision = self.room.precision
        return call(*args, **kwargs) if precision is None else precision.call(call, args, kwargs)

    def _local_norms(self) -> list[nn.Module]:
        return [norm for norm in buffers.norms(self.module) if norm not in self._synced]

    def _reach(self) -> float:
        """What gradients are multiplied by once backward has them."""
        return 1.0 if self._silent else self._weight

    def _hushed(self, gradient: torch.Tensor) -> torch.Tensor:
        """Nothing times what was not finite is nothing."""
        return gradient.nan_to_num(nan=0.0) if self._silent else gradient

    def _average_running(self) -> None:
        for synced in self._synced.values():
            synced.settle()
        running = buffers.running(self._norms) if self._norms else []
        if running:
            torch._foreach_copy_(running, self.room.communicator.all_reduce(running))

    def _refresh(self) -> None:
        """Make DDP again where what it reduces has changed since."""
        if self._generation != self.room.generation:
            self._claim()
        trained = tuple(map(_requires_grad, self._parameters))
        if trained != self._trained:
            self._trained = trained
            self._build()

    def _claim(self) -> None:
        self._generation = self.room.generation
        claim_parts(self)
        if self.room.synchronises:
            among = self.room.communicator
            self._synced = synchronise(self.module, self._synced, among, self.trains, self._reach)
        recompute(self.module, self.room.recomputes, self.trains)
        precision = self.room.precision
        if precision is not None and precision.casts_models:
            self.room.settle(self.module)  # before rank 0's weights are rounded
            precision.cast(self.module)
        self._parameters = list(self.module.parameters())
        self._trained = ()

    def _untaken(self) -> list[nn.Parameter]:
        taken = self.room.taken(self)
        return [p for p in self._parameters if p.requires_grad and id(p) not in taken]

    def _build(self) -> None:
        taken = self.room.taken(self)
        self._own = self._untaken()
        reduced = tuple(map(id, self.trained))
        if reduced and reduced == self._reduced:
            return
        self.release()
        self._reduced = reduced
        self._norms = self._local_norms()
        if reduced:
            self._ddp = self.room.wrap(self.module, self._runner, taken)
            if self._ddp is not None:
                self._forward = forward_of(self._ddp, self._runner)
            if self.room.updates is not None:
                self._held = self.room.updates.held.watch(self._own)
            self.backwards.watch(self.trained[0])

    def _new_carrier(self) -> nn.Parameter:
        like = next(p for p in self.module.parameters() if p.requires_grad)
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        return nn.Parameter(torch.zeros((), dtype=dtype, device=like.device))

    def _set_carrier(self, carrier: nn.Parameter | None) -> None:
        if carrier is not self._runner.carrier:
            self._runner.carrier = carrier
            self._trained = ()

    def _unweigh(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._weight, self._silent = 1.0, False
