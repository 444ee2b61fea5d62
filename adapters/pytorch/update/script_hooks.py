"""A script's own hooks on gradients, which are to see those of the global batch.

torch runs a parameter's hooks before its gradient is averaged, and what a clamp, or a step, makes
of parts is no part of what it makes of the whole: so they wait for the end of backward. Hooks on
what was computed are given this rank's rows as they are in the gradient of the global loss.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, final
from weakref import ref

import torch
from torch import nn

from dream._log import Once, logger
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.private import current_node, gradient_hooks, version_of
from dream.adapters.pytorch.update.script_functions import ScriptFunctions
from dream.adapters.pytorch.update.waiting_hooks import Hook, WaitingHooks, tables

_AFTER = "register_post_accumulate_grad_hook"
_ROWS = (
    "a hook changes the gradient of something computed: it is given this rank's rows of the whole "
    "batch's, so a norm or a mean over rows is that of its own"
)
_SEVERAL = (
    "a hook of register_multi_grad_hook is given gradients before they are averaged: of this rank's"
    " rows, and as many times as large as there are ranks. Read p.grad after backward"
)

_OF_PARAMETERS = (
    "a hook on the node that adds up a parameter's gradient is given what this rank's rows add to "
    "the global one. Have p.register_hook, or read p.grad after backward, for the whole"
)


@final
class ScriptHooks:
    """Has a script's own hooks see the gradients of the global batch. times: how many times as
    large as in the global gradient the rows of this backward pass are. accumulates: whether several
    backward passes make one gradient."""

    def __init__(self, times: Callable[[], int], *, accumulates: bool) -> None:
        self._times = times
        self._waiting = WaitingHooks(accumulates=accumulates)
        self._say = Once()
        self._functions = ScriptFunctions(times)

    def subscribe(self, hooks: Hooks) -> None:
        hooks.wrap("hook", self._wrap)
        hooks.wrap("module_hook", self._wrap_modules)
        hooks.wrap("global_hook", self._wrap_global)
        hooks.wrap("multi_hook", self._telling)
        hooks.wrap("node_hook", self._wrap_nodes)
        hooks.wrap("compiled_function", self._functions.telling)
        hooks.wrap("function_class", self._functions.watching)

    def take(self, items: Iterable[nn.Module | torch.Tensor]) -> None:
        """Have hooks that were registered before the block run as those that are in it."""
        for item in items:
            if isinstance(item, nn.Module):
                for table in gradient_hooks(item).values():
                    table.update({k: _OnModule(self, h) for k, h in _scripts_own(table)})
            elif item.is_leaf and item.requires_grad:
                for table, after in tables(item):
                    for key, hook in _scripts_own(table):
                        table[key] = self._waiting.add(item, hook, after=after)

    @contextmanager
    def kept(self, module: nn.Module) -> Iterator[None]:
        """Have hooks on a module's parameters be on those that it is given inside."""
        old = dict(module.named_parameters(remove_duplicate=False))
        yield
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if parameter is not old[name]:
                self._waiting.move(old[name], parameter)

    def comes_by(self, gathered: torch.Tensor, parameter: torch.Tensor) -> None:
        """A parameter's gradient comes as that of another tensor."""
        gathered.register_hook(partial(self._came, ref(parameter)))

    def _came(self, held: ref[torch.Tensor], _: torch.Tensor) -> None:
        if (parameter := held()) is not None:
            self._waiting.arrives(id(parameter))

    def _wrap(self, register: Callable[..., Any]) -> Callable[..., Any]:
        """`Tensor.register_hook`, and that of hooks which come after a gradient."""
        after = register.__name__ == _AFTER

        @wraps(register)
        def wrapped(tensor: torch.Tensor, hook: Hook) -> Any:
            if not tensor.requires_grad or not _is_scripts(hook):
                return register(tensor, hook)
            if not tensor.is_leaf:
                return register(tensor, partial(self._on_rows, hook))
            self._waiting.refuse_parts()
            return register(tensor, self._waiting.add(tensor, hook, after=after))

        return wrapped

    def _wrap_modules(self, register: Callable[..., Any]) -> Callable[..., Any]:
        """`Module.register_full_backward_hook` and the like."""

        @wraps(register)
        def wrapped(module: nn.Module, hook: Any, *args: Any, **kwargs: Any) -> Any:
            own = _OnModule(self, hook) if _is_scripts(hook) else hook
            return register(module, own, *args, **kwargs)

        return wrapped

    def _wrap_global(self, register: Callable[..., Any]) -> Callable[..., Any]:
        """`register_module_full_backward_hook` and the like, of all modules."""

        @wraps(register)
        def wrapped(hook: Any) -> Any:
            return register(_OnModule(self, hook) if _is_scripts(hook) else hook)

        return wrapped

    def _wrap_nodes(self, register: Callable[..., Any]) -> Callable[..., Any]:
        """What a graph's nodes register hooks by, before they run and after."""

        @wraps(register)
        def wrapped(table: Any, hook: Any) -> Any:
            return register(table, partial(self._on_node, hook) if _is_scripts(hook) else hook)

        return wrapped

    def _telling(self, register: Callable[..., Any]) -> Callable[..., Any]:
        """`register_multi_grad_hook`, whose hooks change nothing."""

        @wraps(register)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            logger.info(_SEVERAL)
            return register(*args, **kwargs)

        return wrapped

    @property
    def idle(self) -> bool:
        """Whether a backward pass may run without them: there is nothing to do about any."""
        return not (self._waiting.waiting and self._waiting.wanted) and self._functions.idle

    def around(self, run: Callable[..., None]) -> Callable[..., None]:
        """`torch.autograd.backward`, after which hooks on parameters run."""
        run = self._functions.around(run)

        @wraps(run)
        def backward(*args: Any, **kwargs: Any) -> None:
            if not self._waiting.wanted:
                run(*args, **kwargs)
                return
            with self._waiting.passing():
                run(*args, **kwargs)

        return backward

    def _on_rows(self, hook: Hook, gradient: torch.Tensor) -> torch.Tensor | None:
        times = self._times()
        if times == 1:
            return hook(gradient)
        given = gradient / times
        changed = hook(given)
        if changed is None and version_of(given):
            changed = given  # it writes to what it is given
        if changed is None:
            return None
        self._say(_ROWS)
        return changed * times

    def _on_node(self, hook: Any, *gradients: Any) -> Any:
        """gradients: of its inputs and its outputs, or of its outputs."""
        times = self._times()
        if times > 1 and current_node().name() == graph.LEAF:
            self._say(_OF_PARAMETERS)
        changed = hook(*(_scaled(given, 1 / times) for given in gradients))
        if changed is None or times == 1:
            return changed
        self._say(_ROWS)
        return _scaled(changed, times)

    def on_modules_rows(self, hook: Any, module: nn.Module, gradients: Iterable[Any]) -> Any:
        """gradients: of its inputs and its outputs, or of its outputs."""
        times = self._times()
        changed = hook(module, *(_scaled(given, 1 / times) for given in gradients))
        if changed is None or times == 1:
            return changed
        self._say(_ROWS)
        return _scaled(changed, times)


@final
class _OnModule:
    """Stands for a module's hook. Copies of the module keep it; pickles have the script's own."""

    def __init__(self, owner: ScriptHooks, hook: Any) -> None:
        self._owner, self._hook = owner, hook

    def __call__(self, module: nn.Module, *gradients: Any) -> Any:
        return self._owner.on_modules_rows(self._hook, module, gradients)

    def __deepcopy__(self, memo: dict[int, Any]) -> _OnModule:
        return _OnModule(self._owner, copy.deepcopy(self._hook, memo))

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return copy.copy, (self._hook,)


def _scaled(gradients: Any, factor: float) -> Any:
    """Gradients, of which those of a loss itself are no rows'."""
    if isinstance(gradients, tuple):
        return tuple(_scaled(each, factor) for each in gradients)
    if gradients is None or gradients.dim() == 0 or factor == 1:
        return gradients
    return gradients * factor


def _scripts_own(table: dict[int, Any]) -> list[tuple[int, Any]]:
    return [(key, hook) for key, hook in table.items() if _is_scripts(hook)]


def _is_scripts(hook: Any) -> bool:
    """Whether a hook is neither torch's nor dream's own."""
    made = hook.func if isinstance(hook, partial) else hook
    owner = made if hasattr(made, "__code__") else type(made)  # torch.sign is the script's choice
    return str(owner.__module__).partition(".")[0] not in ("torch", "dream")
