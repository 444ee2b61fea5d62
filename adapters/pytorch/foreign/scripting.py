"""`torch.jit` in a block: it compiles what torch itself has made, a model without what takes its
calls, so that a trained model can be saved as a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import nn

from dream.adapters.pytorch.call_hook import unhooked
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.randomness.calls import patches as draws


def subscribe(hooks: Hooks) -> None:
    hooks.wrap("script", lambda compile_: _compiling(compile_, hooks))


def _compiling(compile_: Callable[..., Any], hooks: Hooks) -> Callable[..., Any]:
    @wraps(compile_)
    def wrapped(what: Any, *args: Any, **kwargs: Any) -> Any:
        if compile_.__name__ == "script":  # looks for names in its caller's frame
            kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
        with hooks.patches.lifted(), draws.lifted(), _plain(what):
            return compile_(what, *args, **kwargs)

    return wrapped


@contextmanager
def _plain(what: Any) -> Iterator[None]:
    """A module is an ordinary one inside; so is the one that a method is of."""
    module = getattr(what, "__self__", what)
    with unhooked(module.modules() if isinstance(module, nn.Module) else ()):
        yield
