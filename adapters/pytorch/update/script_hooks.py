"""A script's own hooks on gradients, which are to see those of the global batch.

torch runs a parameter's hooks before its gradient is averaged, and what a clamp, or a step, makes
of parts is no part of what it makes of the whole: so they wait for the end of backward. Hooks on
what was computed are given this rank's rows as they are in the gradient of the global loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, final
from weakref import ref

import torch
from torch import nn

from dream._errors import Unsupported
from dream._log import logger
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.update.script_functions import ScriptFunctions

Hook = Callable[[torch.Tensor], torch.Tensor | None]
_AFTER = "register_post_accumulate_grad_hook"
_ROWS = (
    "a hook changes the gradient of something computed: it is given this rank's rows of the whole "
    "batch's, so a norm or a mean over rows is that of its own"
)


@final
class ScriptHooks:
    """Those of one strategy. times: how many times as large as in the global gradient the rows of
    this backward pass are. accumulates: whether several backward passes make one gradient."""

    def __init__(self, times: Callable[[], int], *, accumulates: bool) -> None:
        self._times, self._accumulates = times, accumulates
        self._waiting: dict[int, tuple[ref[torch.Tensor], list[ref[_Waiting]]]] = {}
        self._arrived: dict[int, None] | None = None
        self._said = False
        self._functions = ScriptFunctions(times)

    def subscribe(self, hooks: Hooks) -> None:
        hooks.wrap("hook", self._wrap)
        hooks.wrap("module_hook", self._wrap_modules)

    def _wrap(self, register: Callable[..., Any]) -> Callable[..., Any]:
        """`Tensor.register_hook`, and that of hooks which come after a gradient."""
        after = register.__name__ == _AFTER

        @wraps(register)
        def wrapped(tensor: torch.Tensor, hook: Hook) -> Any:
            if not tensor.requires_grad or not _is_scripts(hook):
                return register(tensor, hook)
            if not tensor.is_leaf:
                return register(tensor, partial(self._on_rows, hook))
            if self._accumulates:
                raise Unsupported(
                    "A hook on a parameter's gradient is to see all of it, which several backward "
                    "passes make here. Received: accumulate=. Leave it out, or change gradients "
                    "between backward and step."
                )
            waiting = _Waiting(self, id(tensor), hook, after=after)
            _, listed = self._waiting.setdefault(id(tensor), (ref(tensor), []))
            listed.append(ref(waiting))
            return register(tensor, waiting)

        return wrapped

    def _wrap_modules(self, register: Callable[..., Any]) -> Callable[..., Any]:
        """`Module.register_full_backward_hook` and the like."""

        @wraps(register)
        def wrapped(module: nn.Module, hook: Any, *args: Any, **kwargs: Any) -> Any:
            own = partial(self._on_modules_rows, hook) if _is_scripts(hook) else hook
            return register(module, own, *args, **kwargs)

        return wrapped

    def around(self, run: Callable[..., None]) -> Callable[..., None]:
        """`torch.autograd.backward`, after which hooks on parameters run."""
        run = self._functions.around(run)

        @wraps(run)
        def backward(*args: Any, **kwargs: Any) -> None:
            if not self._waiting or self._arrived is not None:
                run(*args, **kwargs)
                return
            with self._passing() as (held, arrived):
                run(*args, **kwargs)
            self._run(held, arrived)

        return backward

    @contextmanager
    def _passing(self) -> Iterator[tuple[dict[int, torch.Tensor], dict[int, None]]]:
        """What gradients there are already, and the parameters whose gradients come, in order."""
        held = {}
        for key, (reference, _) in [*self._waiting.items()]:
            tensor = reference()
            if tensor is None:
                del self._waiting[key]
            elif tensor.grad is not None:
                held[key] = tensor.grad.clone()
        arrived: dict[int, None] = {}
        self._arrived = arrived
        try:
            yield held, arrived
        finally:
            self._arrived = None

    def arrives(self, key: int) -> bool:
        """A parameter's gradient comes, in a backward pass at whose end its hooks run. Returns
        whether there is one."""
        if self._arrived is None:
            return False
        self._arrived[key] = None
        return True

    @torch.no_grad()
    def _run(self, held: dict[int, torch.Tensor], arrived: dict[int, None]) -> None:
        for key in {**arrived, **dict.fromkeys(self._waiting)}:
            reference, listed = self._waiting[key]
            tensor = reference()
            waiting = [each for made in listed if (each := made()) is not None]
            if tensor is None or not waiting:
                continue
            if tensor.grad is None:
                if key in arrived:
                    raise Unsupported(
                        "A hook on a parameter's gradient cannot be run here, where the gradient "
                        "is taken elsewhere. Received: a hook of the script's own. Change "
                        "gradients between backward and step, or choose 'mirrored'."
                    )
                continue
            came = tensor.grad - held[key] if key in held else tensor.grad
            if key in arrived or came.any():
                _call(tensor, came, held.get(key), waiting)

    def _on_rows(self, hook: Hook, gradient: torch.Tensor) -> torch.Tensor | None:
        times = self._times()
        changed = hook(gradient if times == 1 else gradient / times)
        if changed is None or times == 1:
            return changed
        self._say()
        return changed * times

    def _on_modules_rows(self, hook: Any, module: nn.Module, *gradients: Any) -> Any:
        """gradients: of its inputs and its outputs, or of its outputs."""
        times = self._times()
        changed = hook(module, *(_scaled(given, 1 / times) for given in gradients))
        if changed is None or times == 1:
            return changed
        self._say()
        return _scaled(changed, times)

    def _say(self) -> None:
        if not self._said:
            self._said = True
            logger.info(_ROWS)


@final
class _Waiting:
    """A hook on a parameter, which runs when backward has ended, and at once in any other pass."""

    def __init__(self, owner: ScriptHooks, key: int, hook: Hook, *, after: bool) -> None:
        self._owner, self._key = owner, key
        self.hook, self.after = hook, after

    def __call__(self, given: torch.Tensor) -> torch.Tensor | None:
        return None if self._owner.arrives(self._key) else self.hook(given)


def _call(
    tensor: torch.Tensor, came: torch.Tensor, held: torch.Tensor | None, waiting: list[_Waiting]
) -> None:
    """Run a parameter's hooks. came: its gradient of this pass. held: what it had before."""
    gradient = came
    for each in waiting:
        changed = None if each.after else each.hook(gradient)
        gradient = gradient if changed is None else changed
    if gradient is not came and tensor.grad is not None:
        tensor.grad.copy_(gradient if held is None else held + gradient)
    for each in waiting:
        if each.after:
            each.hook(tensor)


def _scaled(gradients: Any, factor: float) -> Any:
    """Gradients, of which those of a loss itself are no rows'."""
    if isinstance(gradients, tuple):
        return tuple(_scaled(each, factor) for each in gradients)
    if gradients is None or gradients.dim() == 0 or factor == 1:
        return gradients
    return gradients * factor


def _is_scripts(hook: Any) -> bool:
    """Whether a hook is neither torch's nor dream's own."""
    made = hook.func if isinstance(hook, partial) else hook
    owner = made if hasattr(made, "__code__") else type(made)  # torch.sign is the script's choice
    return str(owner.__module__).partition(".")[0] not in ("torch", "dream")
