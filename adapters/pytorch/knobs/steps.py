"""An optimizer's step: passed over between micro-batches, and made on the clipped gradient.

Methods are replaced on the instance, for life; copies and pickles of it are ordinary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any, final
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer

from dream._errors import Unsupported
from dream.adapters.pytorch.knobs.clipping import Clipping
from dream.adapters.pytorch.knobs.updates import Gate, Updates


@final
class Steps:
    """The optimizers of one strategy. updates: None where each batch is one."""

    def __init__(self, updates: Updates | None, clip: Clipping) -> None:
        self._updates, self._clip = updates, clip
        self._gates: WeakKeyDictionary[Optimizer, Gate | None] = WeakKeyDictionary()

    def wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        """`Optimizer.__init__` whose steps are taken over."""

        @wraps(init)
        def wrapped(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self.take(optimizer)

        return wrapped

    def gate_of(self, optimizer: Optimizer) -> Gate | None:
        return self._gates.get(optimizer)

    def take(self, optimizer: Optimizer) -> None:
        if optimizer in self._gates:
            return
        gate = None if self._updates is None else self._updates.gate(optimizer)
        self._gates[optimizer] = gate
        optimizer.step = MethodType(  # type: ignore[method-assign]
            _step(optimizer.step, gate, self._clip), optimizer
        )
        if gate is not None:
            optimizer.zero_grad = MethodType(  # type: ignore[method-assign]
                _zero_grad(optimizer.zero_grad, gate), optimizer
            )


def _step(inner: Callable[..., Any], gate: Gate | None, clip: Clipping) -> Callable[..., Any]:
    """inner: the optimizer's own."""

    @wraps(inner)
    def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            return inner(_clipped(closure, gate, clip, self))
        if gate is not None and not gate.passes():
            return None
        clip(_parameters(self))
        return inner()

    return step


def _clipped(
    closure: Callable[[], Any], gate: Gate | None, clip: Clipping, optimizer: Optimizer
) -> Callable[[], Any]:
    """The closure that computes a gradient, and clips it."""
    if gate is not None:
        raise Unsupported(
            "A closure computes a whole gradient, which accumulate= cuts in parts. Received: "
            f"{type(optimizer).__name__}.step(closure). Leave accumulate out."
        )

    def clipped() -> Any:
        loss = closure()
        clip(_parameters(optimizer))
        return loss

    return clipped


def _zero_grad(inner: Callable[..., None], gate: Gate) -> Callable[..., None]:
    @wraps(inner)
    def zero_grad(_: Optimizer, set_to_none: bool = True) -> None:
        if not gate.open:
            inner(set_to_none)

    return zero_grad


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
