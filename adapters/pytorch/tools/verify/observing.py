"""What `dream verify` sees of a loop that is the user's own: where backward starts, which modules
are called, how long datasets are. Changed once, for the life of a process that is verified."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from dream.adapters.pytorch.loss import LossObserver
from dream.adapters.pytorch.tools.verify import changing
from dream.adapters.pytorch.tools.verify.traits import traits
from dream.tools.recording.recorder import Recorder

_GLANCE = 1024
"""Numbers of an input that are looked at."""
_LOOKS = 3
"""Steps in which the generators are looked at."""


def observe(recorder: Recorder) -> None:
    """From now on, tell the recorder."""
    seen = Seen(recorder)
    torch.autograd.backward = seen.backward(torch.autograd.backward)
    torch.amp.GradScaler.scale = seen.losses.scale(torch.amp.GradScaler.scale)  # type: ignore[method-assign]
    nn.Module.__call__ = seen.call(nn.Module.__call__)  # type: ignore[method-assign]
    DataLoader.__init__ = seen.loader(DataLoader.__init__)  # type: ignore[method-assign]
    torch.autocast.__enter__ = seen.autocast(torch.autocast.__enter__)  # type: ignore[method-assign]
    changing.change(recorder.request)


@final
class Seen:
    """What has been seen since the last backward."""

    def __init__(self, recorder: Recorder) -> None:
        self.losses = LossObserver()
        self._recorder = recorder
        self._given: tuple[int | None, int | None] = (None, None)
        self._before: list[torch.Tensor] | None = None
        self._outermost = True
        self._looks = 0

    def backward(self, original: Callable[..., None]) -> Callable[..., None]:
        """`torch.autograd.backward`: one that starts from a number is a step."""

        @wraps(original)
        def wrapped(tensors: Any, *args: Any, **kwargs: Any) -> None:
            loss = None if self._recorder.inside else self.losses.number(tensors)
            if loss is None:
                return original(tensors, *args, **kwargs)
            self._recorder.before_step()
            self._recorder.step(loss, *self._given, local=True)
            self._given = (None, None)
            with self._recorder.whole_step():
                return original(tensors, *args, **kwargs)

        return wrapped

    def call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Module.__call__`: the outermost one with gradients on is of a model that is trained."""

        @wraps(original)
        def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._outermost or not _trains(module):
                return original(module, *args, **kwargs)
            with self._called(module, args, kwargs):
                return original(module, *args, **kwargs)

        return wrapped

    def loader(self, original: Callable[..., None]) -> Callable[..., None]:
        """`DataLoader.__init__`: how many samples there are."""

        @wraps(original)
        def wrapped(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            if not self._recorder.inside and hasattr(loader.dataset, "__len__"):
                self._recorder.saw_dataset(len(loader.dataset))

        return wrapped

    def autocast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`autocast.__enter__`, around a model that is trained or inside it."""

        @wraps(original)
        def wrapped(cast: torch.autocast) -> Any:
            entered = original(cast)
            if torch.is_grad_enabled() and torch.is_autocast_enabled(cast.device):
                self._recorder.saw_dtype(str(torch.get_autocast_dtype(cast.device))[6:])
            return entered

        return wrapped

    @contextmanager
    def _called(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[None]:
        if not self._recorder.inside:
            self._recorder.before_step()  # here, no graph or unsharded parameter is left half done
            self._recorder.saw_model(module, traits)
            if self._given == (None, None):
                self._given = _input((args, kwargs))
        looks, self._looks = self._looks < _LOOKS, self._looks + 1
        before = _generators() if looks else []
        self._outermost = False
        try:
            yield
        finally:
            self._outermost = True
        if any(not torch.equal(a, b) for a, b in zip(before, _generators(), strict=False)):
            self._recorder.saw_draw(f"a forward pass of {type(module).__name__}")


def _trains(module: nn.Module) -> bool:
    """Whether a call now is a training loop's; a recomputation during backward is none, and
    dream's own modules are no user's."""
    if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
        return False
    kinds = {base.__module__.partition(".")[0] for base in type(module).__mro__}
    return not kinds & {"dream", "keras"} and any(p.requires_grad for p in module.parameters())


def _input(given: Any) -> tuple[int | None, int | None]:
    """(samples, glance) of the first tensor."""
    first = next((x for x in tree_leaves(given) if isinstance(x, torch.Tensor) and x.dim()), None)
    if first is None:
        return None, None
    if first.device.type != "cpu" or first.dtype is torch.bfloat16:
        return len(first), None
    start = first.detach()[:8].reshape(-1)[:_GLANCE].contiguous()
    return len(first), zlib.crc32(start.numpy().data)


def _generators() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states
