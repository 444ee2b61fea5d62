"""The outermost module that the user calls, where its parameters are sharded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from dream.adapters.pytorch.call_hook import CallHook, hook_of, set_hook
from dream.adapters.pytorch.module import call_empty, call_share
from dream.adapters.pytorch.parallel._private import tree_leaves
from dream.adapters.pytorch.parallel.sharding.meta import MetaInitializer, is_meta
from dream.adapters.pytorch.parallel.sharding.state import (
    GUARD,
    PickleGuard,
    guard_state_dict,
    module_message,
)
from dream.adapters.pytorch.private import recomputing
from dream.adapters.pytorch.update import batch_norm
from dream.adapters.pytorch.update.batch_norm import Synchronised, synchronise
from dream.adapters.pytorch.update.recompute import recompute

if TYPE_CHECKING:
    from dream.adapters.pytorch.parallel.sharding.registry import ShardedRegistry

Forward = Callable[..., Any]


class ShardedModule(CallHook):
    """Takes the calls of one module whose parameters are spread over the ranks.

    The module keeps its name and its place; its parameters are new ones, in shards.

    sharded: the parameters that were sharded, or left whole on purpose, by id.
    """

    def __init__(self, module: nn.Module, registry: ShardedRegistry, inner: Forward | None) -> None:
        super().__init__(module, inner)
        self.registry = registry
        self.sharded: dict[int, nn.Parameter] = {}
        self._norms = batch_norm.norms(module)
        self._synced: dict[nn.Module, Synchronised] = {}
        self._weight, self._silent = 1.0, False
        self._number = 0  # of the update that gradients were last gathered for
        self._completes = True

    @abstractmethod
    def shard(self) -> None:
        """Shard what is not sharded yet, in place."""

    @abstractmethod
    def scale(self, weight: float) -> None:
        """Set what the next gradient counts for; 0 makes it zero, whatever it was."""

    @abstractmethod
    def accumulate(self, *, fresh: bool, completes: bool) -> None:
        """Begin a part of an update. fresh: its first. completes: whether the gradient is whole
        with it, and is to be added up over the ranks."""

    @property
    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that backward passes leave gradients in."""
        return [*self.sharded.values()]

    def reshard(self) -> None:
        """Let go of what was gathered, after calls that no backward follows."""

    def keep_gathered(self, keep: bool) -> None:
        """Leave what is gathered after a backward pass, for a second one through it; or not."""

    def hook_of_copy(self, module: nn.Module) -> CallHook | None:
        """Return what takes the calls of a copy of the module, or of one of its parts."""
        return None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self.inner, args, kwargs)

    def run(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call by the user's loop, of the module or a part; or one by the model itself."""
        registry = self.registry
        if registry.inside:
            return forward(*args, **kwargs)
        if recomputing():
            return self._cast(forward, args, kwargs)
        if not torch.is_grad_enabled():
            return self._without_gradients(forward, args, kwargs)
        if registry.precision is not None and registry.precision.scaling is not None:
            registry.precision.scaling.loop_calls()
        share = registry.shares.of((*args, *kwargs.values()))
        if registry.updates is not None:
            self.begin_micro(completes=registry.updates.begin(share))
        return self.run_scaled(forward, args, kwargs, 1.0 if share is None else share.weight)

    def run_submodule(
        self, part: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call of a part by itself."""
        return self.run(forward, args, kwargs)

    def run_scaled(
        self,
        forward: Forward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        weight: float,
        *,
        counted: bool = False,
    ) -> Any:
        """Run a training call, whose gradient counts for `weight`. counted: the loss is multiplied
        by what it counts for, and `weight` is 0 where that is 0, else 1."""
        self._set_weight(weight, counted=counted)
        output = self._cast(self._call_inside(forward, empty=weight == 0.0), args, kwargs)
        if self._completes:
            self._settle_statistics()
        leaves = [leaf for leaf in tree_leaves(output) if _needs_backward(leaf)]
        if not leaves:
            self.reshard()
        self.registry.called = bool(leaves)
        for leaf in leaves:
            if not leaf.is_leaf:
                leaf.register_hook(self._backward_came)
        return output

    def weigh_by_hand(self, count: float) -> None:
        """Take a loss that is weighed already; nothing at all must not bring a nan."""
        self._set_weight(0.0 if count == 0.0 else 1.0, counted=True)

    def begin_micro(self, *, completes: bool) -> None:
        """Have the next gradients count to the update that the strategy is at."""
        updates = self.registry.updates
        if updates is not None:
            fresh, self._number = updates.number != self._number, updates.number
            self._completes = completes
            self.accumulate(fresh=fresh, completes=completes)

    def apply_update_options(self) -> None:
        """Have layers recomputed and normalise together, as was asked for. Done again after each
        cut."""
        registry = self.registry
        if registry.synchronises:
            self._synced = synchronise(
                self.module, self._synced, registry.dealt, self.trains, lambda: self._weight
            )
            self._norms = [n for n in batch_norm.norms(self.module) if n not in self._synced]
        recompute(self.module, registry.recomputes, self.trains)

    def trains(self) -> bool:
        """Tell whether a part that is called now is called by a training call of the whole."""
        return torch.is_grad_enabled() and (self.registry.inside or recomputing())

    def _without_gradients(
        self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run outside inference_mode, whose tensors could never be trained with: parameters may be
        among them."""
        self.registry.inside = True
        try:
            with torch.inference_mode(False), torch.no_grad():
                return self._run_beside(forward, args, kwargs)
        finally:
            self.registry.inside = False
            self.reshard()

    def _run_beside(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        precision = self.registry.precision
        if precision is None:
            return forward(*args, **kwargs)
        return precision.call_beside(self.module, forward, args, kwargs)

    def _call_inside(self, forward: Forward, *, empty: bool) -> Forward:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.registry.inside = True
            try:
                run = call_empty if empty else call_share
                return run(self.module, forward, args, kwargs)
            finally:
                self.registry.inside = False

        return call

    def _cast(self, call: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        precision = self.registry.precision
        return call(*args, **kwargs) if precision is None else precision.call(call, args, kwargs)

    def _set_weight(self, weight: float, *, counted: bool) -> None:
        """Where BatchNorm sees all ranks' samples, those of a rank whose loss counts for nothing
        have gradients still, and only what comes from that loss is nothing."""
        self._silent = counted and weight == 0.0 and bool(self._synced)
        self._weight = 1.0 if self._silent else weight
        self.scale(self._weight)

    def _backward_came(self, gradient: torch.Tensor) -> torch.Tensor:
        """Note that backward has come. Nothing times what was not finite is nothing."""
        self.registry.called = False
        return gradient.nan_to_num(nan=0.0) if self._silent else gradient

    def _settle_statistics(self) -> None:
        for synced in self._synced.values():
            synced.settle()
        running = batch_norm.running(self._norms) if self._norms else []
        if running:
            means = self.registry.dealt.all_reduce(running)
            for buffer, mean in zip(running, means, strict=True):
                buffer.copy_(mean)


def _needs_backward(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


@final
class SubmoduleCall(CallHook):
    """Takes the calls of a part of a sharded module that may be called by itself."""

    def __init__(self, module: nn.Module, root: ShardedModule) -> None:
        inner = hook_of(module).inner if isinstance(hook_of(module), CallHook) else None
        super().__init__(module, inner)
        self.root = root

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.root.registry.inside or recomputing():
            return self.inner(*args, **kwargs)
        return self.root.run_submodule(self.module, self.inner, args, kwargs)


def shard_loaded(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Take this rank's shards of whole tensors: a hook before load_state_dict."""
    for name, parameter in module.named_parameters():
        value: Any = state.get(prefix + name)
        if isinstance(parameter, DTensor) and type(value) in (torch.Tensor, nn.Parameter):
            state[prefix + name] = shard_like(value.detach(), parameter)


def shard_like(whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Spread a tensor over the ranks as a parameter is."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


def take_calls(root: ShardedModule) -> None:
    """Have the calls of the module and of its parts come to the root, whoever took them before."""
    for part in root.module.modules():
        set_hook(part, root if part is root.module else SubmoduleCall(part, root))
        others = {name: value for name, value in vars(part).items() if name != GUARD}
        vars(part).clear()  # a pickler is to meet the mark before hooks that it cannot take
        vars(part).update({GUARD: PickleGuard(module_message(type(part).__name__))} | others)
    guard_state_dict(root.module)


def copy_shards(module: nn.Module, memo: dict[int, Any]) -> None:
    """Have a deep copy take these copies of the parameters. torch cannot copy a DTensor that has a
    gradient."""
    for parameter in module.parameters():
        if isinstance(parameter, DTensor) and id(parameter) not in memo:
            copied = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
            memo[id(parameter)] = copied


@final
class UnshardedModule(ShardedModule):
    """One rank, nothing to shard; a model made on the meta device gets its memory."""

    def __init__(
        self,
        module: nn.Module,
        registry: ShardedRegistry,
        inner: Forward | None,
        *,
        device: torch.device,
    ) -> None:
        super().__init__(module, registry, inner)
        self._device = device

    def shard(self) -> None:
        if is_meta(self.module):
            MetaInitializer(self.module).fill(self.module, self._device, self.registry.world)
        self.sharded = {id(parameter): parameter for parameter in self.module.parameters()}

    def scale(self, weight: float) -> None:
        """There are no others to count beside."""

    def accumulate(self, *, fresh: bool, completes: bool) -> None:
        """Backward adds up by itself."""
