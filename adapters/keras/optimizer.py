"""What an optimizer of a distributed model does: reduce first, then all that Keras does.

So clipping, accumulation, averaging of weights and loss scaling act on the global gradient.
Methods are replaced on the instance; its class, and so how it is saved, stays what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any
from weakref import WeakSet

import keras

from dream._errors import ConfigurationError
from dream.adapters.keras import private, step
from dream.adapters.keras.data.digest import digest_of
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.update import clipping, exchange


def take(optimizer: Any, engine: Engine) -> Any:
    """The optimizer, with what the engine's parts and knobs have it do."""
    clipping.adopt(optimizer, engine.knobs)
    exchange.check_unscaled(optimizer, engine.knobs)
    return distribute(optimizer, engine) if engine.steps else optimizer


def distribute(optimizer: Any, engine: Engine) -> Any:
    """The optimizer, whose `apply` from now on takes local gradients in a dream step."""
    inner = vars(optimizer).get("inner_optimizer")  # not there yet while it is being made
    if inner is not None:
        _release(inner)  # its gradients come through the outer one
        engine.adopt_optimizer(inner)
    if "apply" in vars(optimizer):
        return optimizer

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        reduce_and_apply(self, engine, list(grads), trainable_variables)

    optimizer.apply = MethodType(apply, optimizer)
    weigh_losses(optimizer)
    engine.adopt_optimizer(optimizer)
    return optimizer


def weigh_losses(optimizer: Any) -> None:
    """Have the optimizer weigh a loss where it scales it, in a step that holds updates."""

    def scale_loss(self: Any, loss: Any) -> Any:
        scaled = type(self).scale_loss(self, loss)
        scope = step.current()
        return scaled if scope is None or scope.held is None else scaled * scope.weight

    optimizer.scale_loss = MethodType(scale_loss, optimizer)


def _release(optimizer: Any) -> None:
    for name in ("apply", "scale_loss"):
        vars(optimizer).pop(name, None)


def reduce_and_apply(optimizer: Any, engine: Engine, gradients: list[Any], variables: Any) -> None:
    """Apply what is global, hold what the step will reduce itself, reduce anything else here."""
    if variables is not None:
        variables = list(variables)
    scope = step.current()
    if scope is None and step.take_announced():
        scope = step.Scope()
        _check_start(optimizer, engine, variables or [])
    if scope is None:
        raise _unweighed(optimizer, engine)
    if scope.reduced:
        apply_global(optimizer, engine, gradients, variables)
    elif not step.hold(optimizer, gradients, variables):
        whole = _reduced(engine, step.Update(optimizer, gradients, variables), scope.weight)
        apply_global(optimizer, engine, whole, variables)


def _reduced(engine: Engine, update: step.Update, weight: Any) -> list[Any]:
    """What all parts step on. weight: what this part's gradients count for, 1 for an equal
    share."""
    if engine.exchange is not None:
        return exchanged(engine, update, weight)
    present = [g for g in update.gradients if g is not None]
    reduced = iter(engine.total(engine.weigh(present, weight / engine.parts)))
    return [None if g is None else next(reduced) for g in update.gradients]


def exchanged(engine: Engine, update: step.Update, weight: Any) -> list[Any]:
    """The same by the engine's exchange."""
    assert engine.exchange is not None
    variables = update.variables
    if variables is None:
        inner = getattr(update.optimizer, "inner_optimizer", update.optimizer)
        variables = private.known_to(inner)
    gradients = [None if g is None else engine.weigh([g], weight)[0] for g in update.gradients]
    return exchange.exchanged(engine.exchange, variables, gradients)


def apply_global(optimizer: Any, engine: Engine, gradients: list[Any], variables: Any) -> None:
    """Keras's own `apply` on global gradients."""
    with step.reduced_scope(), engine.applying():
        type(optimizer).apply(optimizer, gradients, variables)


_begun: WeakSet[Any] = WeakSet()
"""Optimizers that have taken a step of a loop by hand."""


def _check_start(optimizer: Any, engine: Engine, variables: Sequence[Any]) -> None:
    """Before the first step of a loop by hand, which nothing of dream's came before: by then the
    gradients are those of this rank's own weights, so it is too late to take rank 0's."""
    if optimizer in _begun or engine.pooled:
        return
    _begun.add(optimizer)
    with engine.outside():
        mine = digest_of(keras.ops.convert_to_numpy(v.value) for v in variables)
        digests = engine.communicator.all_gather_object(mine)
    other = next((rank for rank, each in enumerate(digests) if each != digests[0]), None)
    if other is not None:
        raise ConfigurationError(
            "The ranks start this loop from different weights. Received: "
            f"{type(optimizer).__name__}.apply, weights of rank {other} that are not rank 0's. "
            "Call keras.utils.set_random_seed with one number on every rank before the model is "
            "made, or take the step by strategy.train_step(model, loss, optimizer), which starts "
            "from rank 0's."
        )


def _unweighed(optimizer: Any, engine: Engine) -> ConfigurationError:
    return ConfigurationError(
        "These gradients are one replica's own, and nothing says what they weigh. Received: "
        f"{type(optimizer).__name__}.apply outside a dream step, replicas={engine.parts}. Take "
        "the step by strategy.train_step(model, loss, optimizer), or use model.fit."
    )
