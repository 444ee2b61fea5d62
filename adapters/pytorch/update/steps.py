"""An optimizer's step: passed over between micro-batches, and made on the clipped gradient.

Methods are replaced on the instance, for life; copies and pickles of it are ordinary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from types import MethodType
from typing import Any, final
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer

from dream._errors import Unsupported
from dream.adapters.pytorch.update.clipping import Clipping
from dream.adapters.pytorch.update.masters import Masters
from dream.adapters.pytorch.update.scaling import Scaling
from dream.adapters.pytorch.update.updates import Gate, Updates


@final
class Steps:
    """The optimizers of one strategy. updates: None where each batch is one. scaling, masters: None
    where there are none."""

    def __init__(
        self,
        updates: Updates | None,
        clip: Clipping,
        scaling: Scaling | None,
        masters: Masters | None,
    ) -> None:
        self._updates = updates
        self._act = _Act(clip, scaling, masters)
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

    def parameters(self) -> list[nn.Parameter]:
        """What all of them step on."""
        return [p for optimizer in [*self._gates] for p in _parameters(optimizer)]

    def take(self, optimizer: Optimizer) -> None:
        if optimizer in self._gates:
            return
        gate = None if self._updates is None else self._updates.gate(optimizer)
        self._gates[optimizer] = gate
        optimizer.step = MethodType(  # type: ignore[method-assign]
            _step(optimizer.step, gate, self._act), optimizer
        )
        if gate is not None:
            optimizer.zero_grad = MethodType(  # type: ignore[method-assign]
                _zero_grad(optimizer.zero_grad, gate), optimizer
            )
        if self._act.masters is not None:
            optimizer.load_state_dict = MethodType(  # type: ignore[method-assign]
                _load(optimizer.load_state_dict, self._act.masters), optimizer
            )
            optimizer.state_dict = MethodType(  # type: ignore[method-assign]
                _state(optimizer.state_dict, self._act.masters), optimizer
            )


@final
class _Act:
    """What is done to a complete gradient before a step on it."""

    def __init__(self, clip: Clipping, scaling: Scaling | None, masters: Masters | None) -> None:
        self.clip, self.scaling, self.masters = clip, scaling, masters

    def step(self, optimizer: Optimizer, inner: Callable[[], Any]) -> Any:
        if self.scaling is None:
            self.clip(_parameters(optimizer))
            return inner()
        self.scaling.check_untouched()
        masters = self.masters
        with nullcontext() if masters is None else masters.in_place(optimizer, self.scaling.own):
            parameters = _parameters(optimizer)
            if not self.scaling.passes(parameters):
                return None
            self.clip(parameters)
            return inner()


def _step(inner: Callable[..., Any], gate: Gate | None, act: _Act) -> Callable[..., Any]:
    """inner: the optimizer's own."""

    @wraps(inner)
    def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            _check_closure(self, gate, act)
            return inner(_clipped(closure, act.clip, self))
        if gate is not None and not gate.passes():
            return None
        return act.step(self, inner)

    return step


def _check_closure(optimizer: Optimizer, gate: Gate | None, act: _Act) -> None:
    if gate is not None:
        raise Unsupported(
            "A closure computes a whole gradient, which accumulate= cuts in parts. Received: "
            f"{type(optimizer).__name__}.step(closure). Leave accumulate out."
        )
    if act.scaling is not None:
        raise Unsupported(
            "A step in float16 is left out where a gradient overflows, and a closure cannot be. "
            f"Received: {type(optimizer).__name__}.step(closure). Use precision='bfloat16'."
        )


def _clipped(closure: Callable[[], Any], clip: Clipping, optimizer: Optimizer) -> Callable[[], Any]:
    """The closure that computes a gradient, and clips it."""

    def clipped() -> Any:
        loss = closure()
        clip(_parameters(optimizer))
        return loss

    return clipped


def _load(inner: Callable[..., None], masters: Masters) -> Callable[..., None]:
    """An optimizer's state is of its parameters' type, which is that of the masters."""

    @wraps(inner)
    def load_state_dict(self: Optimizer, state: Any) -> None:
        with masters.in_place(self, 1.0):
            inner(state)

    return load_state_dict


def _state(inner: Callable[[], Any], masters: Masters) -> Callable[..., Any]:
    @wraps(inner)
    def state_dict(self: Optimizer) -> Any:
        with masters.in_place(self, 1.0):
            return inner()

    return state_dict


def _zero_grad(inner: Callable[..., None], gate: Gate) -> Callable[..., None]:
    @wraps(inner)
    def zero_grad(_: Optimizer, set_to_none: bool = True) -> None:
        if not gate.open:
            inner(set_to_none)

    return zero_grad


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
