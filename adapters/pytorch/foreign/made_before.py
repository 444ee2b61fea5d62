"""Models, optimizers and loaders made before the block, and used in it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dream._errors import Unsupported
from dream.adapters.pytorch.call_hook import CallHook, hook_of, set_hook
from dream.adapters.pytorch.data.held import left_alone
from dream.adapters.pytorch.data.loader import LoaderSharder, dealt_of
from dream.adapters.pytorch.module import Pending
from dream.adapters.pytorch.optimizer import parameters_of
from dream.adapters.pytorch.parallel.base import Parallelism
from dream.adapters.pytorch.private import (
    functions_unseen,
    gradient_hooks,
    has_tables,
    is_compiled,
    recomputing,
)

_DIVIDED = (
    "Under {!r} a model is divided as it is made, and this one was made before the block | Make it "
    "and its optimizer inside the block, or pass both to strategy.prepare"
)
_WRAPPED = (
    "A wrapper that reduces gradients was put around this model before the block, which reduces "
    "them too | Put it around the model inside the block, where it leaves that to dream"
)
_SOUGHT = (nn.Module, Optimizer, DataLoader, torch.Tensor)


@final
class MadeBefore:
    """Takes what was made before the block once it is used in it, as if it were made in it; a
    strategy that has to see a model being made refuses it."""

    def __init__(self, parallelism: Parallelism, sharder: LoaderSharder) -> None:
        self._own, self._sharder = parallelism, sharder
        self._hooks: list[tuple[nn.Module, Any, CallHook]] = []
        self._optimizers: list[tuple[Optimizer, set[str]]] = []
        self.optimizes = False
        """Whether there is an optimizer that no block has made."""

    def find(self) -> None:
        """Look for them, as the block opens. What another block has made stays its own."""
        modules, optimizers, loaders, hooked = _alive()
        others = {
            id(p) for m in modules if isinstance(hook_of(m), CallHook) for p in m.parameters()
        }
        free = [module for module in modules if not isinstance(hook_of(module), CallHook)]
        self._own.take_hooks([*free, *hooked])
        inner = {id(child) for module in modules for child in module.children()}
        for module in free:
            self._meet(module, top=id(module) not in inner)
        if any(before is not None or is_compiled(m) for m, before, _ in self._hooks):
            torch.compiler.reset()  # graphs that were compiled have no hook in them
        own_ones = [o for o in optimizers if not any(id(p) in others for p in parameters_of(o))]
        self.optimizes = bool(own_ones)
        if self._own.meets:
            for optimizer in own_ones:
                self._optimizers.append((optimizer, set(vars(optimizer))))
                self._own.training.take(optimizer)
                self._own.adopt(optimizer)
        for loader in loaders:
            own = type(loader).__iter__ is not DataLoader.__iter__ and dealt_of(loader) is None
            if own and not hasattr(loader, "load_state_dict"):  # torchdata's keeps its own place
                self._sharder.deal(loader)  # its own __iter__ would be gone through twice

    def _meet(self, module: nn.Module, *, top: bool) -> None:
        compiled = hook_of(module)  # by Module.compile
        several = self._own.world.world_size > 1
        if several and isinstance(module, DistributedDataParallel):
            set_hook(module, _Refused(module, _WRAPPED))
        elif self._own.meets:
            self._own.meet(module)
        elif top and several:
            set_hook(module, _Refused(module, _DIVIDED.format(self._own.name)))
        hook = hook_of(module)
        if isinstance(hook, CallHook):
            if compiled is not None:
                hook.inner = compiled
            self._hooks.append((module, compiled, hook))

    def release(self, module: nn.Module) -> None:
        """The user passes a module to the strategy by name."""
        if isinstance(hook_of(module), _Refused):
            set_hook(module, None)

    def leave(self) -> None:
        """Let go of those that were not used, as the block closes."""
        for module, before, hook in self._hooks:
            if hook_of(module) is hook and isinstance(hook, (Pending, _Refused)):
                set_hook(module, before)
        for optimizer, before in self._optimizers:
            if self._own.drop(optimizer):
                for name in set(vars(optimizer)) - before:
                    delattr(optimizer, name)
        self._hooks, self._optimizers = [], []

    def wrap_iter(self, iterate: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """`DataLoader.__iter__` that deals a loader on first use."""

        @wraps(iterate)
        def wrapped(loader: DataLoader[Any]) -> Iterator[Any]:
            if dealt_of(loader) is None and not left_alone():
                self._sharder.deal(loader)
                if dealt_of(loader) is not None:
                    self._own.follow(loader)
                    return type(loader).__iter__(loader)
            return iterate(loader)

        return wrapped


@final
class _Refused(CallHook):
    """Refuses to train a module that was made before the block."""

    def __init__(self, module: nn.Module, why: str) -> None:
        super().__init__(module)
        self._why, self._remedy = why.split(" | ")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not recomputing() and _trains(self.module):
            raise Unsupported(
                f"{self._why}. Received: a training call of {type(self.module).__name__}. "
                f"{self._remedy}."
            )
        return self.inner(*args, **kwargs)


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _alive() -> tuple[list[nn.Module], list[Optimizer], list[DataLoader[Any]], list[torch.Tensor]]:
    """Every module, optimizer and loader there is, and every tensor with hooks on its gradient. By
    their types: some objects make themselves when they are asked for their class; and of the types
    first, since objects are some hundred thousand."""
    modules: list[nn.Module] = []
    optimizers: list[Optimizer] = []
    loaders: list[DataLoader[Any]] = []
    objects = gc.get_objects()
    sought = {kind for kind in set(map(type, objects)) if issubclass(kind, _SOUGHT)}
    found = [item for item in objects if type(item) in sought]
    with functions_unseen():
        hooked = [x for x in found if issubclass(type(x), torch.Tensor) and gradient_hooks(x)]
    for item in found:
        kind = type(item)
        if issubclass(kind, DataLoader):
            loaders.append(item)
        elif issubclass(kind, torch.Tensor):
            continue
        elif not has_tables(item):
            continue  # it is on its way to be made, never was, or wraps one that is
        elif issubclass(kind, Optimizer):
            optimizers.append(item)
        elif not kind.__module__.startswith("dream."):
            modules.append(item)
    return modules, optimizers, loaders, hooked
