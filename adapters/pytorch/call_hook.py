"""The hook on a module's calls: it takes them, and copies of the module are free of it. Sets of
modules, which hold none of them alive; and whether torch.func runs a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, final
from weakref import ref

import torch
from torch import nn

from dream._errors import Unsupported
from dream.adapters.pytorch import private
from dream.adapters.pytorch.private import CALL, has_hooks, not_compiled_alone, own_call

STATE = "__getstate__"


class CallHook(ABC):
    """Takes the calls of one module. Copies and pickles of the module leave it behind: they are
    ordinary modules.

    inner: what it runs: the module's own call, or what `Module.compile` made of it.
    """

    def __init__(self, module: nn.Module, inner: Callable[..., Any] | None = None) -> None:
        self.module = module
        self.inner: Callable[..., Any] = own_call(module) if inner is None else inner

    def __init_subclass__(cls) -> None:
        not_compiled_alone(cls.__call__)

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


@final
class Passthrough(CallHook):
    """Changes nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Wrapper(ABC):
    """Stands for a module's own call within a hook, and runs that in turn."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner = inner

    def __init_subclass__(cls) -> None:
        not_compiled_alone(cls.__call__)

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def unwrapped(inner: Callable[..., Any], kinds: tuple[type[Wrapper], ...]) -> Callable[..., Any]:
    """Strip what is around it of these kinds."""
    while isinstance(inner, kinds):
        inner = inner.inner
    return inner


def called_with(
    module: nn.Module, forward: Callable[..., Any], inner: Callable[..., Any], *args: Any
) -> Any:
    """Call a module with another forward pass. inner: its own call, which is made where hooks
    go along with it."""
    if not has_hooks(module):
        return forward(*args)
    vars(module)["forward"] = forward
    try:
        return inner(*args)
    finally:
        del vars(module)["forward"]


def hook_of(module: nn.Module) -> Any:
    """Return what takes the module's calls; None for an ordinary module."""
    return module.__dict__.get(CALL)


def ensure_hook(module: nn.Module) -> CallHook:
    """Return what takes the module's calls; one that changes nothing where there was none."""
    if not isinstance(hook_of(module), CallHook):
        set_hook(module, Passthrough(module))
    hook: CallHook = hook_of(module)
    return hook


def set_hook(module: nn.Module, hook: Callable[..., Any] | None) -> None:
    """Have the module's calls taken. Past `__setattr__`, which a compiled module hands on to the
    module it wraps."""
    module.__dict__[CALL] = hook
    if type(module).__getstate__ is not nn.Module.__getstate__:
        module.__dict__[STATE] = _State(module)


@contextmanager
def unhooked(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Nothing takes the calls of these modules inside."""
    taken = [(whole, _take(whole)) for whole in map(vars, modules)]
    try:
        yield
    finally:
        for whole, hook in taken:
            whole.update(hook)


def _take(whole: dict[str, Any]) -> dict[str, Any]:
    return {name: whole.pop(name) for name in (CALL, STATE) if name in whole}


@final
class _State:
    """`__getstate__` of a module whose class has its own: torch's leaves the hook out, and this
    does the same. Copies of the module have one of their own."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self) -> Any:
        whole = vars(self._module)
        taken = _take(whole)
        try:
            state: Any = type(self._module).__getstate__(self._module)
            return dict(whole) if state is whole else state
        finally:
            whole.update(taken)


def wrap_compile(compile_in_place: Callable[..., None]) -> Callable[..., None]:
    """`Module.compile` that leaves the hook to dream and compiles what it runs."""

    @wraps(compile_in_place)
    def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        hook = hook_of(module)
        if isinstance(hook, CallHook):
            hook.inner = torch.compile(own_call(module), *args, **kwargs)
        else:
            compile_in_place(module, *args, **kwargs)

    return wrapped


@final
class ModuleSet:
    """Modules in the order in which they came. By identity: a metric of torchmetrics, say, hashes
    and compares by what it holds."""

    def __init__(self) -> None:
        self._refs: dict[int, ref[nn.Module]] = {}

    def add(self, module: nn.Module) -> None:
        key, refs = id(module), self._refs
        if key not in refs:
            refs[key] = ref(module, lambda _: refs.pop(key, None))

    def clear(self) -> None:
        self._refs.clear()

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._refs

    def __iter__(self) -> Iterator[nn.Module]:
        found = [held() for held in self._refs.values()]
        return iter([module for module in found if module is not None])


def untransformed(ranks: int, *, any_within: bool = False) -> bool:
    """Whether no transform of torch.func runs what is called now. any_within: look at those that
    the innermost one is in, too.

    Raises:
        Unsupported: one that differentiates does, and there are several ranks.
    """
    if private.peek_transform() is None:
        return True
    *around, running = private.transforms()
    if any_within:
        running = next((each for each in (*around, running) if each != "Vmap"), running)
    if running == "Vmap" or ranks == 1:
        return False
    raise Unsupported(
        "Gradients computed by torch.func are this rank's alone and are not averaged. "
        f"Received: a model's call inside torch.func ({running}). Use loss.backward(); or "
        "differentiate copy.deepcopy(model), which is left alone, and average what that gives "
        "by strategy.communicator.all_reduce."
    )
