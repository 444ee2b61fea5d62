"""What a loop does once an update, and must not do at each micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from dream._errors import Unsupported
from dream.adapters.pytorch.local import local_of
from dream.adapters.pytorch.patches import Patches
from dream.adapters.pytorch.update.updates import Gate, Updates

GateOf = Callable[[Optimizer], Gate | None]
_SCHEDULERS = (
    lr_scheduler.LRScheduler,
    lr_scheduler.ReduceLROnPlateau,
    lr_scheduler.SequentialLR,
    lr_scheduler.ChainedScheduler,
)
"""Those whose constructors do not call another's."""


def enter(patches: Patches, updates: Updates, gate_of: GateOf) -> None:
    """While the block is open: schedulers made, modules cleared, gradients clipped and scaled."""
    for kind in _SCHEDULERS:
        patches.replace(kind, "__init__", _gated_init(kind.__init__, gate_of))
    patches.replace(nn.Module, "zero_grad", _wrap_zero_grad(nn.Module.zero_grad, updates))
    clip_norm, clip_value = nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_
    patches.replace(nn.utils, "clip_grad_norm_", _wrap_clip_norm(clip_norm, updates))
    patches.replace(nn.utils, "clip_grad_value_", _wrap_clip_value(clip_value, updates))


def refuse_scalers(patches: Patches) -> None:
    """While the block is open: torch's own loss scale would be undone too early, or twice."""
    patches.replace(torch.amp.GradScaler, "__init__", _refused(torch.amp.GradScaler.__init__))


def _gated_init(init: Callable[..., None], gate_of: GateOf) -> Callable[..., None]:
    @wraps(init)
    def wrapped(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        init(scheduler, *args, **kwargs)
        if not isinstance(scheduler, _Gated):
            scheduler.__class__ = _gated_class(type(scheduler), gate_of)

    return wrapped


class _Gated:
    """Marks a scheduler's class that is made here."""


def _gated_class(base: type[Any], gate_of: GateOf) -> type[Any]:
    """The scheduler's class, whose `step` acts where its optimizer's did. On the class, since a
    scheduler's state is all that is on the instance."""

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate = gate_of(self.optimizer)
        return None if gate is not None and gate.open else base.step(self, *args, **kwargs)

    body = {"step": step, "__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (base, _Gated), body)


def _wrap_zero_grad(clear: Callable[..., None], updates: Updates) -> Callable[..., None]:
    @wraps(clear)
    def wrapped(module: nn.Module, set_to_none: bool = True) -> None:
        if not updates.open:
            clear(module, set_to_none)

    return wrapped


def _wrap_clip_norm(
    clip: Callable[..., torch.Tensor], updates: Updates
) -> Callable[..., torch.Tensor]:
    """`clip_grad_norm_` that waits for the whole gradient; until then it tells the norm."""

    @wraps(clip)
    def wrapped(
        parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        if not updates.waiting:
            return clip(parameters, max_norm, norm_type, *args, **kwargs)
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        gradients = [local_of(p.grad) for p in listed if p.grad is not None]
        return nn.utils.get_total_norm(gradients, norm_type)

    return wrapped


def _wrap_clip_value(clip: Callable[..., None], updates: Updates) -> Callable[..., None]:
    @wraps(clip)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        if not updates.waiting:
            clip(*args, **kwargs)

    return wrapped


def _refused(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def wrapped(scaler: Any, *args: Any, **kwargs: Any) -> None:
        init(scaler, *args, **kwargs)
        if scaler.is_enabled():
            raise Unsupported(
                "A scaler unscales the gradient at each step, and under accumulate= that is not "
                "complete yet; precision='float16' scales by itself. Received: "
                f"{type(scaler).__name__} in the block. Leave it out."
            )

    return wrapped
