"""What sits in a module's call slot: `_compiled_call_impl`, which `Module.compile` uses too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch
from torch import nn

_NAME = "_compiled_call_impl"
_STATE = "__getstate__"


class Slot(ABC):
    """Takes the calls of one module. Copies and pickles of the module leave it behind: they are
    ordinary modules.

    inner: what it runs: the module's own call, or what `Module.compile` made of it.
    """

    def __init__(self, module: nn.Module, inner: Callable[..., Any] | None = None) -> None:
        self.module = module
        self.inner: Callable[..., Any] = module._call_impl if inner is None else inner

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


@final
class Plain(Slot):
    """Changes nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Around(ABC):
    """What a slot runs in place of a module's own call, and runs that in turn."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner = inner

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def unwrapped(inner: Callable[..., Any], kinds: tuple[type[Around], ...]) -> Callable[..., Any]:
    """Without what is around it of these kinds."""
    while isinstance(inner, kinds):
        inner = inner.inner
    return inner


def called_with(
    module: nn.Module, forward: Callable[..., Any], inner: Callable[..., Any], *args: Any
) -> Any:
    """A call of a module with another forward pass. inner: its own call, which is made where hooks
    go along with it."""
    if not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks):
        return forward(*args)
    vars(module)["forward"] = forward
    try:
        return inner(*args)
    finally:
        del vars(module)["forward"]


def slot_of(module: nn.Module) -> Any:
    """What takes the module's calls; None for an ordinary module."""
    return module.__dict__.get(_NAME)


def made_slot_of(module: nn.Module) -> Slot:
    """What takes the module's calls; one that changes nothing where there was none."""
    if not isinstance(slot_of(module), Slot):
        set_slot(module, Plain(module))
    slot: Slot = slot_of(module)
    return slot


def set_slot(module: nn.Module, slot: Slot | None) -> None:
    """Have the module's calls taken. Past `__setattr__`, which a compiled module hands on to the
    module it wraps."""
    module.__dict__[_NAME] = slot
    if type(module).__getstate__ is not nn.Module.__getstate__:
        module.__dict__[_STATE] = _State(module)


@final
class _State:
    """`__getstate__` of a module whose class has its own: torch's leaves the slot out, and this
    does the same. Copies of the module have one of their own."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self) -> Any:
        whole = vars(self._module)
        taken = {name: whole.pop(name) for name in (_NAME, _STATE) if name in whole}
        try:
            state: Any = type(self._module).__getstate__(self._module)
            return dict(whole) if state is whole else state
        finally:
            whole.update(taken)


def wrap_compile(compile_in_place: Callable[..., None]) -> Callable[..., None]:
    """`Module.compile` that leaves the slot to dream and compiles what it runs."""

    @wraps(compile_in_place)
    def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        slot = slot_of(module)
        if isinstance(slot, Slot):
            slot.inner = torch.compile(module._call_impl, *args, **kwargs)
        else:
            compile_in_place(module, *args, **kwargs)

    return wrapped
