"""`torch.jit` in a block: it compiles what torch itself has made, a model without what takes its
calls, so that a trained model can be saved as a script."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch
from torch import nn

from dream._errors import Unsupported
from dream.adapters.pytorch.call_hook import CallHook, set_hook, unhooked
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.parallel.base import Parallelism
from dream.adapters.pytorch.randomness.calls import patches as draws
from dream.adapters.pytorch.update import batch_norm


@final
class Scripting:
    """What a strategy does where a script calls `torch.jit`."""

    def __init__(self, parallelism: Parallelism, hooks: Hooks) -> None:
        several = parallelism.world.world_size > 1
        self._name, self._hooks = parallelism.name, hooks
        self._splits = several and not parallelism.whole
        self._together = several and parallelism.update_options.synchronises

    def subscribe(self) -> None:
        self._hooks.wrap("script", self._compiling)

    def _compiling(self, compile_: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(compile_)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            what = next(iter((*args, *kwargs.values())), None)
            module: Any = getattr(what, "__self__", what)
            parts = [*module.modules()] if isinstance(module, nn.Module) else []
            if self._splits and parts and next(module.parameters(), None) is not None:
                raise Unsupported(
                    "torch.jit compiles a model whose parameters are whole. Received: "
                    f"{type(module).__name__} under {self._name!r}. Compile a model made outside "
                    "the block, with the weights that strategy.full_state(model) returns."
                )
            if compile_.__name__ == "script":  # looks for names in its caller's frame
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
            with self._hooks.patches.lifted(), draws.lifted(), unhooked(parts):
                compiled = compile_(*args, **kwargs)
            if self._together and isinstance(compiled, nn.Module) and batch_norm.compiled(compiled):
                set_hook(compiled, _Untrained(compiled))
            return compiled

        return wrapped


@final
class _Untrained(CallHook):
    """Takes no training call of a compiled model that normalises by a batch."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.module.training and torch.is_grad_enabled():
            batch_norm.refuse_compiled(self.module)
        return self.inner(*args, **kwargs)
