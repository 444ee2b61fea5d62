"""Parameters that shards take the place of, and the optimizers that are to step those."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final
from weakref import WeakSet

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from dream import stall
from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.call_hook import ModuleSet
from dream.adapters.pytorch.module import ModuleRegistry
from dream.adapters.pytorch.parallel.sharding.meta import is_meta
from dream.adapters.pytorch.private import tree_map
from dream.adapters.pytorch.update.stamps import Stamps


@final
class SplitParameters:
    """Parameters of one strategy that shards take the place of.

    made: the modules that were made in the block. replaced: the new parameter for each old one that
    is still held somewhere.
    """

    def __init__(self, registry: ModuleRegistry) -> None:
        self._registry = registry
        self._masters = None if registry.precision is None else registry.precision.masters
        self._made = ModuleSet()
        self._replaced: Any = WeakTensorKeyDictionary()
        self._optimizers: WeakSet[Optimizer] = WeakSet()

    def add(self, module: nn.Module) -> None:
        """Know a module that was made in the block."""
        self._made.add(module)

    def owners(self, optimizer: Optimizer) -> list[nn.Module]:
        """Return the outermost modules made in the block that hold what an optimizer steps."""
        wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
        within = {id(child) for module in self._made for child in module.children()}
        outermost = [module for module in self._made if id(module) not in within]
        return [m for m in outermost if any(id(p) in wanted for p in m.parameters())]

    def cast(self, module: nn.Module) -> list[nn.Module]:
        """Have a module that is about to be sharded in its precision's type. Return the parts whose
        parameters are of another one."""
        precision = self._registry.precision
        if precision is None:
            return []
        if self._masters is not None and is_meta(module):
            raise Unsupported(
                "Master weights are kept of a model's first values, which are not there yet. "
                f"Received: precision='O2' and {type(module).__name__} on the meta device. Make it "
                "on its real device, or use precision='float16'."
            )
        precision.cast(module)
        return precision.apart(module)

    @contextmanager
    def replacing(self, module: nn.Module) -> Iterator[None]:
        """Have optimizers step the parameters that a module is given inside."""
        old = dict(module.named_parameters(remove_duplicate=False))
        yield
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if parameter is not old[name]:
                self._replaced[old[name]] = parameter
                stand_for(old[name], parameter)
                if self._masters is not None:
                    self._masters.move(old[name], parameter, shard_like)
        for optimizer in self._optimizers:
            self._swap(optimizer)

    def now(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the new parameter for an old one; others as they are."""
        new: torch.Tensor | None = self._replaced.get(tensor)
        return tensor if new is None else new

    def are_stepped(self, parameters: list[nn.Parameter]) -> bool:
        """Whether an optimizer of torch's has one of these."""
        wanted = {id(p) for p in parameters}
        groups = (group for optimizer in self._optimizers for group in optimizer.param_groups)
        return any(id(p) in wanted for group in groups for p in group["params"])

    def take(self, optimizer: Optimizer) -> None:
        """Have an optimizer step shards only, from here on."""
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            if self._registry.world.world_size > 1:
                optimizer.register_step_pre_hook(_GradientCheck(self._registry))
            optimizer.register_load_state_dict_pre_hook(_optimizer_state_cut)
        self._swap(optimizer)

    def _swap(self, optimizer: Optimizer) -> None:
        """Put the new parameters where the old ones are."""
        for group in optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                new = self._replaced.get(parameter)
                if new is None:
                    continue
                if optimizer.state.get(parameter):
                    raise ConfigurationError(
                        "An optimizer that has already stepped cannot take over the shards of a "
                        f"split model. Received: {type(optimizer).__name__} with state for a "
                        f"parameter of shape {tuple(parameter.shape)}. Make the optimizer after "
                        "the model is split, or load its state then."
                    )
                group["params"][index] = new


class OldParameter(nn.Parameter):
    """A parameter whose place shards have taken, as a script's own list still has it: whatever is
    done to it is done to these."""

    shards: torch.Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(_in_shards, (args, kwargs or {}))
        return func(*args, **kwargs)


def _in_shards(x: Any) -> Any:
    return x.shards if type(x) is OldParameter else x


def stand_for(old: nn.Parameter, new: nn.Parameter) -> None:
    """Have an old parameter stand for the one in shards that has taken its place. A gradient that
    it has is let go of, as it is no part of the new one's."""
    if type(old) is nn.Parameter:
        old.grad = None
        vars(old)["shards"] = new
        old.__class__ = OldParameter


@final
class _GradientCheck:
    """A step pre-hook: the gradients are of split modules."""

    def __init__(self, registry: ModuleRegistry) -> None:
        self._registry = registry
        self._seen = Stamps()

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stall.stepped()
        if len(args) > 1 or kwargs.get("closure") is not None:
            return  # the closure computes the gradients
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        reached = [p for p in stepped if p.grad is not None]
        if not self._seen.are_of(reached, unwritten=False):
            self._check(optimizer)
            self._seen = Stamps(reached)
        for parameter in reached:
            _cut_alike(parameter)

    def _check(self, optimizer: Optimizer) -> None:
        """Refuse a gradient whose parameter is not of a sharded module."""
        known = self._registry.reduced()
        for number, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                gradient = parameter.grad
                where = f"{index} of group {number}, shape {tuple(parameter.shape)}"
                if isinstance(parameter, DTensor) and not isinstance(gradient, DTensor | None):
                    raise ConfigurationError(
                        "A gradient set by hand is not sharded like its parameter. Received: "
                        f"parameter {where}. Call backward() on the loss."
                    )
                own = id(parameter) not in known and not self._registry.averaged(parameter)
                if gradient is not None and own:
                    raise ConfigurationError(
                        "A parameter's gradient is this rank's own, since no module that was made "
                        f"in the block and split holds it. Received: parameter {where}. Make it "
                        "part of a module, or pass the module and the optimizer to "
                        "strategy.prepare."
                    )


def _cut_alike(parameter: Any) -> None:
    """Have a gradient that the script has set be in shards as its parameter is: few of an
    optimizer's operations take another."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def _optimizer_state_cut(optimizer: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
    """Take this rank's shards of whole tensors: a hook before load_state_dict."""
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    keys = [key for group in given["param_groups"] for key in group["params"]]
    of = dict(zip(keys, stepped, strict=False))
    state = {
        key: {n: _cut_like(x, of.get(key)) for n, x in entries.items()}
        if isinstance(entries, dict) else entries
        for key, entries in given["state"].items()
    }  # fmt: skip
    return {**given, "state": state}


def _cut_like(value: Any, parameter: Any) -> Any:
    """Return an ordinary tensor of a parameter's state in shards as that is, or whole on every rank
    where it has other sizes, as Adafactor's have. What has other dims stays: a count of steps."""
    alike = type(value) is torch.Tensor and isinstance(parameter, DTensor)
    if not alike or value.dim() == 0 or value.dim() != parameter.dim():
        return value
    if value.shape == parameter.shape:
        return shard_like(value, parameter)
    mesh = parameter.device_mesh
    everywhere = [Replicate()] * mesh.ndim
    return distribute_tensor(value, mesh, everywhere, src_data_rank=None)


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
    made = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    return made.cpu() if parameter.device.type == "cpu" else made  # offloaded, of a mesh of GPUs


def copy_shards(module: nn.Module, memo: dict[int, Any]) -> None:
    """Have a deep copy take these copies of the parameters. torch cannot copy a DTensor that has a
    gradient."""
    for parameter in module.parameters():
        if isinstance(parameter, DTensor) and id(parameter) not in memo:
            copied = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
            memo[id(parameter)] = copied
