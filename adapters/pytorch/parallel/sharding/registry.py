"""The modules of a strategy that shards them, and the optimizers that step their shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, final
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.call_hook import CallHook, hook_of, set_hook
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.keras.entry import refuse_keras
from dream.adapters.pytorch.module import layout_of, refuse_uninitialised
from dream.adapters.pytorch.parallel.sharding.meta import is_meta
from dream.adapters.pytorch.parallel.sharding.module import (
    Forward,
    ShardedModule,
    shard_like,
    take_calls,
)
from dream.adapters.pytorch.parallel.sharding.state import guard_optimizer_state
from dream.adapters.pytorch.private import recomputing
from dream.adapters.pytorch.update import batch_norm
from dream.adapters.pytorch.update.accumulation import Updates
from dream.adapters.pytorch.update.precision import Precision
from dream.adapters.pytorch.update.recompute import How
from dream.collectives import Communicator
from dream.model_description.layout import check_same

MakeRoot = Callable[[nn.Module, "ShardedRegistry", Forward | None], ShardedModule]


@final
@dataclass(eq=False)
class ShardedRegistry:
    """The modules of one strategy: those made in the block, and the roots of those sharded so far.

    world: all ranks; dealt: those that batches are dealt to. draws: by how much this rank's random
    numbers are moved, once the first module is sharded. make: a module's root.
    updates: where the loop is, where its batches come in micro-batches; else None.
    precision: what models are called in, where that is not float32.
    synchronises: BatchNorm normalises by all ranks' samples. recomputes: which layers are.
    inside: a sharded module is running, so those it calls are its parts.
    called: one was called in training, and no backward has come to it since.
    replaced: the new parameter for each old one that is still held somewhere.
    followers: called when parameters have been replaced.
    """

    name: str
    world: Communicator
    dealt: Communicator
    shares: Shares
    draws: int
    make: MakeRoot
    updates: Updates | None = None
    precision: Precision | None = None
    synchronises: bool = field(default=False, kw_only=True)
    recomputes: How = field(default=False, kw_only=True)
    inside: bool = field(default=False, init=False)
    called: bool = field(default=False, init=False)
    roots: WeakSet[ShardedModule] = field(default_factory=WeakSet, init=False)
    replaced: Any = field(default_factory=WeakTensorKeyDictionary, init=False)
    followers: list[Callable[[], None]] = field(default_factory=list, init=False)
    _made: WeakKeyDictionary[nn.Module, None] = field(default_factory=WeakKeyDictionary, init=False)
    _begun: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.synchronises = self.synchronises and self.dealt.world_size > 1
        self._masters = None if self.precision is None else self.precision.masters

    def adopt(self, module: nn.Module) -> None:
        """Have the calls of a module that was made in the block looked at."""
        self._made[module] = None
        if self.world.world_size > 1:
            set_hook(module, PendingModule(module, self))

    def cast(self, module: nn.Module) -> None:
        """Have a module that is about to be sharded in its precision's type."""
        if self.precision is None:
            return
        if self._masters is not None and is_meta(module):
            raise Unsupported(
                "Master weights are kept of a model's first values, which are not there yet. "
                f"Received: precision='O2' and {type(module).__name__} on the meta device. Make it "
                "on its real device, or use precision='float16'."
            )
        self.precision.cast(module)

    def apart(self, module: nn.Module) -> list[nn.Module]:
        """Return the parts whose parameters are of another type than the rest."""
        return [] if self.precision is None else self.precision.apart(module)

    def shard(self, module: nn.Module) -> ShardedModule:
        """Return the module's root, made on first use; what was put in since is sharded too."""
        root = hook_of(module)
        if not isinstance(root, ShardedModule):
            refuse_keras(module, self.name)
            root = self.make(module, self, root.inner if isinstance(root, CallHook) else None)
        if root not in self.roots or any(id(p) not in root.sharded for p in module.parameters()):
            self._shard(root)
        return root

    def shard_owners(self, parameters: Iterable[torch.Tensor]) -> None:
        """Shard the outermost modules made in the block that hold any of the parameters."""
        wanted = {id(parameter) for parameter in parameters}
        within = {id(child) for module in self._made for child in module.children()}
        several = self.world.world_size > 1
        for module in list(self._made):
            holds = any(id(parameter) in wanted for parameter in module.parameters())
            if holds and id(module) not in within and (several or is_meta(module)):
                self.shard(module)

    def trained(self) -> list[nn.Parameter]:
        """Return what backward passes leave gradients in."""
        return [parameter for root in self.roots for parameter in root.trained]

    def roots_by_parameter(self) -> dict[int, ShardedModule]:
        """Return the root of each sharded parameter, by the parameter's id, or its master's."""
        found = {key: root for root in self.roots for key in root.sharded}
        if self._masters is not None:
            for root in self.roots:
                masters = map(self._masters.of, root.sharded.values())
                found |= {id(master): root for master in masters if master is not None}
        return found

    def reshard(self) -> None:
        """Have every module's parameters be shards."""
        for root in self.roots:
            root.reshard()

    def _shard(self, root: ShardedModule) -> None:
        module = root.module
        refuse_uninitialised(module)
        start_as_rank_0(module, self.world)
        old = dict(module.named_parameters(remove_duplicate=False))
        for part in module.modules():
            if isinstance(hook_of(part), ShardedModule):
                self.roots.discard(hook_of(part))
        self.inside = True  # what a look at a forward pass calls is no training
        try:
            root.shard()
        finally:
            self.inside = False
        if self.world.world_size > 1:
            take_calls(root)
            root.apply_update_options()
        self.roots.add(root)
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if parameter is not old[name]:
                self.replaced[old[name]] = parameter
                if self._masters is not None:
                    self._masters.move(old[name], parameter, shard_like)
        if not self._begun:
            self._begun = True
            devices.offset_by(self.draws)
        if self.dealt.world_size > 1 and not self.synchronises:
            batch_norm.tell_local_statistics(module)
        for follow in self.followers:
            follow()


def start_as_rank_0(module: nn.Module, world: Communicator) -> None:
    """Take rank 0's parameters and buffers, written only where they differ, after a look at whether
    all ranks built the same."""
    check_same(world.all_gather_object(layout_of(module)))
    own = [
        tensor.detach()
        for tensor in (*module.parameters(), *module.buffers())
        if type(tensor.data) is torch.Tensor and not tensor.is_meta
    ]
    if own:
        for tensor, first in zip(own, world.broadcast(own), strict=True):
            if not torch.equal(tensor, first):
                tensor.copy_(first)


@final
class PendingModule(CallHook):
    """Takes the calls of a module made in the block until it is known whose part it is.

    copied: the module is a copy of a split one, and can only be called once it is split itself.
    """

    def __init__(
        self, module: nn.Module, registry: ShardedRegistry, *, copied: bool = False
    ) -> None:
        super().__init__(module)
        self._registry = registry
        self._copied = copied

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._registry.inside and not recomputing() and self._is_trained():
            return self._registry.shard(self.module)(*args, **kwargs)
        return self.inner(*args, **kwargs)

    def _is_trained(self) -> bool:
        if not torch.is_grad_enabled():
            return self._copied
        return any(parameter.requires_grad for parameter in self.module.parameters())


@final
class ShardedOptimizers:
    """The optimizers of one strategy."""

    def __init__(self, registry: ShardedRegistry) -> None:
        self._registry = registry
        self._known: WeakSet[Optimizer] = WeakSet()
        registry.followers.append(self._follow)

    def adopt(self, optimizer: Optimizer) -> None:
        """Shard the modules that hold the parameters of an optimizer made in the block."""
        self._registry.shard_owners(p for g in optimizer.param_groups for p in g["params"])
        self.take(optimizer)

    def take(self, optimizer: Optimizer) -> None:
        """Have the optimizer step shards only, from here on."""
        if optimizer not in self._known:
            self._known.add(optimizer)
            optimizer.register_step_pre_hook(_GradientCheck(self._registry))
            guard_optimizer_state(optimizer)
        self._swap(optimizer)

    def _follow(self) -> None:
        """Put in the parameters that have been replaced."""
        for optimizer in self._known:
            self._swap(optimizer)

    def _swap(self, optimizer: Optimizer) -> None:
        """Put the new parameters where the old ones are."""
        for group in optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                new = self._registry.replaced.get(parameter)
                if new is None:
                    continue
                if optimizer.state.get(parameter):
                    raise ConfigurationError(
                        "An optimizer that has stepped cannot take the parts of a split model. "
                        f"Received: {type(optimizer).__name__} with state for a parameter of "
                        f"shape {tuple(parameter.shape)}. Make the optimizer after the model is "
                        "split, or load its state then."
                    )
                group["params"][index] = new


@final
class _GradientCheck:
    """A step pre-hook: the gradients are of split modules."""

    def __init__(self, registry: ShardedRegistry) -> None:
        self._registry = registry
        self._seen: tuple[int, ...] = ()

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) > 1 or kwargs.get("closure") is not None:
            return  # the closure computes the gradients
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        seen = tuple(id(p) for p in stepped if p.grad is not None)
        if seen != self._seen:
            if self._registry.world.world_size > 1:
                self._check(optimizer)
            self._seen = seen

    def _check(self, optimizer: Optimizer) -> None:
        """Refuse a gradient whose parameter is not of a sharded module."""
        parts = self._registry.roots_by_parameter()
        for number, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                gradient = parameter.grad
                where = f"{index} of group {number}, shape {tuple(parameter.shape)}"
                if isinstance(parameter, DTensor) and not isinstance(gradient, DTensor | None):
                    raise ConfigurationError(
                        "A gradient was set by hand that is not spread as its parameter is. "
                        f"Received: parameter {where}. Call backward() on the loss."
                    )
                if gradient is not None and id(parameter) not in parts:
                    raise ConfigurationError(
                        "A parameter's gradient is this rank's own, since no module that was made "
                        f"in the block and split holds it. Received: parameter {where}. Make it "
                        "part of a module, or pass the module and the optimizer to "
                        "strategy.prepare."
                    )
