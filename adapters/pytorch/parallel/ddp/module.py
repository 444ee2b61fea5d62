"""A module that DistributedDataParallel reduces, itself left as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from dream.adapters.pytorch import private
from dream.adapters.pytorch.call_hook import CallHook, set_hook
from dream.adapters.pytorch.collectives import GradientHook
from dream.adapters.pytorch.errors import unfinished
from dream.adapters.pytorch.module import DistributedModule, ModuleRegistry
from dream.adapters.pytorch.optimizer import Forward
from dream.adapters.pytorch.private import recomputing, tree_leaves
from dream.adapters.pytorch.update import batch_norm


@final
@dataclass(frozen=True, slots=True)
class DdpSettings:
    """options: of the strategy. hook: reduces a bucket; None leaves it to the process group."""

    options: Mapping[str, Any]
    hook: GradientHook | None

    def wrap(self, runner: DdpForward, taken: set[int]) -> DistributedDataParallel:
        """Make a DDP over the runner. taken: ids of parameters that another module's DDP
        reduces."""
        ignored = (name for name, p in runner.named_parameters() if id(p) in taken)
        private.ignore_parameters(runner, ignored)
        ddp = DistributedDataParallel(
            runner,
            init_sync=False,
            forward_sync_buffers=False,
            gradient_as_bucket_view=self.options["bucket_view"],
            bucket_cap_mb=self.options["bucket_mb"],
            find_unused_parameters=self.options["find_unused"],
            static_graph=self.options["static_graph"],
        )
        if self.hook is not None:
            ddp.register_comm_hook(None, self.hook)
        return ddp


@final
class DdpForward(nn.Module):
    """The module that DDP wraps: it runs the user's, and may carry one number with the gradients.

    carrier: a parameter of shape () whose gradient is set to the loss, so that the loss is
        reduced in the gradients' own bucket; None where nobody asked for it. With it the output
        is a pair: the module's, and what to start backward from beside the loss.
    searched: DDP searches the output for the parameters that take part; a parameter itself is
        not found, a tensor computed from it is.
    """

    def __init__(self, hook: CallHook, *, searched: bool) -> None:
        super().__init__()
        self._searched = searched
        self._hook = hook
        self.inner = hook.module
        self.carrier: nn.Parameter | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self._hook.inner(*args, **kwargs)
        if self.carrier is None:
            return output
        return output, self.carrier + 0 if self._searched else self.carrier


def forward_of(ddp: DistributedDataParallel, runner: DdpForward) -> Callable[..., Any]:
    """DDP's forward pass. Where nothing is to be found out about the graph, that is three calls
    of its reducer; the rest of `DDP.forward` (joins, moves, casts, buffers, a profiler's label) is
    never used here and would cost a small model 4 % of its step."""
    if ddp.find_unused_parameters or ddp.static_graph:
        forward: Callable[..., Any] = ddp.forward
        return forward
    reducer = ddp.reducer

    def lean(*args: Any, **kwargs: Any) -> Any:
        try:
            reducer.prepare_for_forward()
            private.rebuild_buckets(reducer)
        except RuntimeError as error:
            known = unfinished(error)
            if known is None:
                raise
            raise known from error
        output = runner.forward(*args, **kwargs)
        reducer.prepare_for_backward([])
        return output

    return lean


def scale_gradients(parameters: list[nn.Parameter], weight: float) -> list[RemovableHandle]:
    """Have each parameter's gradient multiplied by `weight` before it is reduced; 0 makes it
    zero whatever it was, since the mean over no sample is nan."""
    scale = torch.zeros_like if weight == 0.0 else partial(torch.mul, weight)
    return [parameter.register_hook(scale) for parameter in parameters]


_requires_grad = attrgetter("requires_grad")


@final
class DdpModule(DistributedModule):
    """Takes the calls of one module and runs them under DDP."""

    def __init__(
        self,
        module: nn.Module,
        registry: ModuleRegistry,
        inner: Forward | None,
        *,
        settings: DdpSettings,
    ) -> None:
        super().__init__(module, registry, inner)
        self._settings = settings
        self._ddp: DistributedDataParallel | None = None
        self._runner = DdpForward(self, searched=bool(settings.options.get("find_unused", False)))
        set_hook(self._runner, None)  # it is made in the block, but is no user's
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
        self._norms = batch_norm.norms(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.registry.training_call():
            return self._beside(args, kwargs)
        if self.registry.training.scaling is not None:
            self.registry.training.scaling.loop_calls()
        self._set_carrier(None)
        share = self.registry.shares.of((*args, *kwargs.values()))
        if self.registry.updates is not None:
            self._completes = self.registry.updates.begin(share)
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
            self.registry.settle(self.module)
            self.registry.begin(self.module)

    def weigh_by_hand(self, count: float) -> None:
        """The loss is weighed already, so shares count as equal; but nothing at all must not
        bring a nan."""
        self.weigh(0.0 if count == 0.0 else 1.0, counted=True)

    def weigh(self, weight: float, *, counted: bool = False) -> None:
        """Set what the next gradient of this module counts for. counted: the loss is multiplied by
        that already; where BatchNorm sees all ranks' samples, those of a rank whose loss counts
        for nothing have gradients still, and only what comes from that loss is nothing."""
        self._refresh()
        silent = counted and weight == 0.0 and bool(self.synchronised)
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
        """The weight of the last call's gradient."""
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
            private.remove_hooks(self._ddp)
            vars(self._ddp).clear()  # it refers to itself, and its buckets are as large as a model
            self._ddp = None
            self._forward = self._runner.forward
        self.backwards.stop()

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        forward = self._forward if self._completes else self._runner.forward
        empty = self._weight == 0.0

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(forward, args, kwargs, empty=empty)

        output = self.registry.training.call(call, args, kwargs)
        if self.synchronised:
            for x in tree_leaves(output):
                if isinstance(x, torch.Tensor) and x.requires_grad and not x.is_leaf:
                    x.register_hook(self._hushed)
        if self._completes:
            self._average_running()
        return output

    def _beside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that is no training: to evaluate, inside another module, or by a backward pass
        that repeats one."""
        if self.registry.inside:
            return self.inner(*args, **kwargs)
        if recomputing():
            return self.registry.training.call(self.inner, args, kwargs)
        return self.registry.training.call_beside(self.module, self.inner, args, kwargs)

    def _local_norms(self) -> list[nn.Module]:
        return [norm for norm in batch_norm.norms(self.module) if norm not in self.synchronised]

    def _reach(self) -> float:
        """Return what gradients are multiplied by once backward has them."""
        return 1.0 if self._silent else self._weight

    def _hushed(self, gradient: torch.Tensor) -> torch.Tensor:
        """Nothing times what was not finite is nothing."""
        return gradient.nan_to_num(nan=0.0) if self._silent else gradient

    def _average_running(self) -> None:
        for synced in self.synchronised.values():
            synced.settle()
        running = batch_norm.running(self._norms) if self._norms else []
        if running:
            private.foreach_copy_(running, self.registry.communicator.all_reduce(running))

    def _refresh(self) -> None:
        """Make DDP again where what it reduces has changed since."""
        if self._generation != self.registry.generation:
            self._claim()
        trained = tuple(map(_requires_grad, self._parameters))
        if trained != self._trained:
            self._trained = trained
            self._build()

    def _claim(self) -> None:
        self._generation = self.registry.generation
        self.claim()
        self.take_options(self._reach)
        precision = self.registry.precision
        if precision is not None and precision.casts_models:
            self.registry.settle(self.module)  # before rank 0's weights are rounded
            precision.cast(self.module)
        self._parameters = list(self.module.parameters())
        self._trained = ()

    def _untaken(self) -> list[nn.Parameter]:
        taken = self.registry.taken(self)
        return [p for p in self._parameters if p.requires_grad and id(p) not in taken]

    def _build(self) -> None:
        taken = self.registry.taken(self)
        self._own = self._untaken()
        reduced = tuple(map(id, self.trained))
        if reduced and reduced == self._reduced:
            return
        self.release()
        self._reduced = reduced
        self._norms = self._local_norms()
        if reduced:
            if self.registry.communicator.world_size > 1:
                self.registry.settle(self.module)
                self._ddp = self._settings.wrap(self._runner, taken)
                self.registry.begin(self.module)
                self._forward = forward_of(self._ddp, self._runner)
            if self.registry.updates is not None:
                self._held = self.registry.updates.held.watch(self._own)
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
