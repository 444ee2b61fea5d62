"""One chain for every optimizer's step: accumulate, unscale, clip, step.

Methods are replaced on the instance, for life; copies and pickles of it are ordinary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import wraps
from types import MethodType
from typing import Any, final
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer

from dream._errors import Unsupported
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.update import accumulation
from dream.adapters.pytorch.update.accumulation import Gate, Updates
from dream.adapters.pytorch.update.gradients import Spread
from dream.adapters.pytorch.update.precision import MasterWeights, ModelPrecision
from dream.adapters.pytorch.update.scaling import Scaling
from dream.update.precision import PRECISIONS
from dream.update.update import UpdateOptions

Forward = Callable[..., Any]


@final
class Training:
    """Makes a strategy's updates. Changes nothing where nothing is asked for.

    updates: None where each batch is an update. precision: None for float32. scaling: None where
    the loss is not scaled. masters: None where optimizers step the models' own weights. most:
    micro-batches to an update, at most. runs_models: models are called in another way, on one
    device too.
    """

    def __init__(
        self, update_options: UpdateOptions, device: str, ranks: int, spread: Spread
    ) -> None:
        """ranks: those that share a batch. spread: of the gradients that optimizers step on."""
        row = PRECISIONS[update_options.precision]
        self._update_options, self._spread = update_options, spread
        self.most = update_options.micros
        self.updates = Updates(update_options.micros) if update_options.accumulates else None
        self.scaling = Scaling(ranks, spread) if row.scales else None
        self.masters = MasterWeights() if row.master else None
        self.precision = None
        if update_options.casts:
            self.precision = ModelPrecision(row, device, self.masters)
        self.runs_models = bool(
            update_options.accumulates or update_options.casts or update_options.recompute
        )
        self._acts = update_options.accumulates or update_options.clips or row.scales
        self._gates: WeakKeyDictionary[Optimizer, Gate | None] = WeakKeyDictionary()

    def watch(
        self, called: Callable[[], bool], trained: Callable[[], Iterable[nn.Parameter]]
    ) -> None:
        """called: whether a model of the strategy's was called in training since the last
        backward. trained: the parameters that those models gather gradients in."""
        if self.scaling is None:
            return

        def parameters() -> list[nn.Parameter]:
            stepped = (p for optimizer in [*self._gates] for p in parameters_of(optimizer))
            return [*{id(p): p for p in (*trained(), *stepped)}.values()]

        self.scaling.called, self.scaling.parameters = called, parameters
        if self.updates is not None:
            self.scaling.changed = self.updates.held.renote

    def subscribe(self, hooks: Hooks) -> None:
        if not self._acts:
            return
        hooks.made("optimizer", self.take)
        if self.updates is not None or self.scaling is not None:
            hooks.made("scaler", accumulation.refuse_scaler)
        if self.updates is not None:
            accumulation.subscribe(hooks, self.updates, self._gates.get)
        if self.scaling is not None:
            hooks.wrap("backward", self.scaling.opened)

    def exit(self) -> None:
        """The block ends."""
        if self.scaling is not None:
            self.scaling.close()

    def take(self, optimizer: Optimizer) -> None:
        """Have an optimizer's steps go through the chain."""
        if not self._acts or optimizer in self._gates:
            return
        gate = None if self.updates is None else self.updates.gate(optimizer)
        self._gates[optimizer] = gate
        own: dict[str, Callable[..., Any]] = {"step": self._step(optimizer.step, gate)}
        if gate is not None:
            own["zero_grad"] = _zero_grad(optimizer.zero_grad, gate)
        if self.masters is not None:
            for inner in (optimizer.load_state_dict, optimizer.state_dict):
                own[inner.__name__] = _on_masters(inner, self.masters)
        for name, function in own.items():
            setattr(optimizer, name, MethodType(function, optimizer))

    def call(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a model's call that trains it, in its precision."""
        if self.precision is None:
            return forward(*args, **kwargs)
        return self.precision.call(forward, args, kwargs)

    def call_beside(
        self, model: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a model's call that does not."""
        if self.precision is None:
            return forward(*args, **kwargs)
        return self.precision.call_beside(model, forward, args, kwargs)

    def micros(self) -> int:
        """Micro-batches that a loader cuts a share into, at most."""
        return 1 if self.updates is None else self.updates.micros()

    def _step(self, inner: Callable[..., Any], gate: Gate | None) -> Callable[..., Any]:
        """inner: the optimizer's own."""

        @wraps(inner)
        def step(optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            if closure is not None:
                self._check_closure(optimizer)
                return inner(self._clipped(closure, optimizer))
            if gate is not None and not gate.passes():
                return None
            if self.scaling is not None:
                return self._unscaled(optimizer, self.scaling, inner)
            self._clip(optimizer)
            return inner()

        return step

    def _unscaled(
        self, optimizer: Optimizer, scaling: Scaling, inner: Callable[[], Any]
    ) -> Any | None:
        """A step left out where a gradient is not finite."""
        scaling.check_untouched()
        masters = self.masters
        with nullcontext() if masters is None else masters.in_place(optimizer, scaling.own):
            if not scaling.passes(parameters_of(optimizer)):
                return None
            self._clip(optimizer)
            return inner()

    def _clip(self, optimizer: Optimizer) -> None:
        """By norm or by value, in place; nothing where neither was asked for."""
        update_options = self._update_options
        if update_options.clip_norm is not None:
            self._spread.clip_norm(parameters_of(optimizer), update_options.clip_norm)
        if update_options.clip_value is not None:
            self._spread.clip_value(parameters_of(optimizer), update_options.clip_value)

    def _clipped(self, closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
        """The closure that computes a gradient, and clips it."""

        def clipped() -> Any:
            loss = closure()
            self._clip(optimizer)
            return loss

        return clipped

    def _check_closure(self, optimizer: Optimizer) -> None:
        if self.updates is not None:
            raise Unsupported(
                "A closure computes a whole gradient, which accumulate= would split. Received: "
                f"{type(optimizer).__name__}.step(closure). Remove accumulate."
            )
        if self.scaling is not None:
            raise Unsupported(
                "A float16 step is skipped when a gradient overflows, which a closure does not "
                f"allow. Received: {type(optimizer).__name__}.step(closure). Use "
                "precision='bfloat16'."
            )


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """List them in the order of the groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _on_masters(inner: Callable[..., Any], masters: MasterWeights) -> Callable[..., Any]:
    """An optimizer's state is of its parameters' type, which is that of the masters."""

    @wraps(inner)
    def method(optimizer: Optimizer, *args: Any) -> Any:
        with masters.in_place(optimizer, 1.0):
            return inner(*args)

    return method


def _zero_grad(inner: Callable[..., None], gate: Gate) -> Callable[..., None]:
    @wraps(inner)
    def zero_grad(_: Optimizer, set_to_none: bool = True) -> None:
        if not gate.open:
            inner(set_to_none)

    return zero_grad
