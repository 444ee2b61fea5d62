"""An optimizer of a distributed model: reduce first, then all that Keras does.

So clipping, accumulation, averaging of weights and loss scaling act on the global gradient.
Methods are replaced on the instance; its class, and so how it is saved, stays what it was. What a
gradient that reaches it is worth, it reads off the step that is going on: a `Scope`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MethodType
from typing import Any
from weakref import WeakSet

import keras
import numpy as np

from dream._errors import ConfigurationError, Unsupported
from dream._log import warn_once
from dream._patches import value_set
from dream.adapters.keras import private
from dream.adapters.keras.data.sources import digest_of
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.forward import unweighed
from dream.adapters.keras.randomness.draws import alike
from dream.adapters.keras.update.exchange import on_present
from dream.model_description.layout import unnumbered
from dream.update.drift import differing, other_hyperparameters
from dream.update.precision import PRECISIONS
from dream.update.update import UpdateOptions


@dataclass(slots=True)
class Update:
    """Gradients that an optimizer was to apply, kept until they are reduced."""

    optimizer: Any
    gradients: list[Any]
    variables: list[Any] | None


@dataclass(slots=True)
class Scope:
    """The step that is going on.

    weight: what this rank's gradients count for, so that the mean over the parts is that over
        the global batch: a number or a scalar tensor.
    reduced: the gradients are global already.
    held: where updates wait until the end of the step; None applies them at once.
    """

    weight: Any = 1.0
    reduced: bool = False
    held: list[Update] | None = None


_scope: ContextVar[Scope | None] = ContextVar("dream.keras_step", default=None)
_announced: ContextVar[bool] = ContextVar("dream.keras_announced", default=False)


def step_scope(weight: Any = 1.0) -> AbstractContextManager[None]:
    """Inside, optimizers reduce gradients that weigh `weight` (`Share.weight`), then apply them."""
    return value_set(_scope, Scope(weight))


def reduced_scope() -> AbstractContextManager[None]:
    """Inside, optimizers are given gradients that are global already."""
    return value_set(_scope, Scope(reduced=True))


@contextmanager
def holding_scope(weight: Any) -> Iterator[list[Update]]:
    """Inside, optimizers weigh the loss by `weight` where they scale it, and apply nothing: their
    updates wait in the list."""
    held: list[Update] = []
    with value_set(_scope, Scope(weight, held=held)):
        yield held


def announce() -> None:
    """Note that the user has weighed the loss: the optimizer applied next reduces its gradients as
    they are."""
    _announced.set(True)


def hold(optimizer: Any, gradients: Sequence[Any], variables: Any) -> bool:
    """Keep an update for the end of the step, where there is one that waits for it."""
    scope = _scope.get()
    if scope is None or scope.held is None:
        return False
    variables = None if variables is None else list(variables)
    scope.held.append(Update(optimizer, list(gradients), variables))
    return True


def take(optimizer: Any, engine: Engine) -> Any:
    """Have the optimizer do what the engine's parts and the update's options ask for."""
    adopt_clipping(optimizer, engine.update_options)
    check_unscaled(optimizer, engine.update_options)
    if engine.steps:
        _distribute(optimizer, engine)
    return optimizer


def take_all(model: Any, engine: Engine) -> None:
    """Take the optimizers of a model."""
    for found in optimizers_of(model):
        take(found, engine)


def optimizers_of(model: Any) -> list[Any]:
    """Return the optimizers that the model holds as attributes, built or not."""
    found = {id(v): v for v in vars(model).values() if isinstance(v, keras.optimizers.Optimizer)}
    return list(found.values())


def hyperparameters(optimizers: Sequence[Any]) -> dict[str, str]:
    """Return what optimizers step by, by name: numbers, and schedules in Keras's own words."""
    found = {}
    for place, optimizer in enumerate(optimizers):
        which = f" {place + 1}" if place else ""
        for name, value in _config(optimizer).items():
            if name != "name":
                found[f"{name} of {type(optimizer).__name__}{which}"] = _plain(value)
    return found


def _config(optimizer: Any) -> dict[str, object]:
    try:
        config: dict[str, object] = optimizer.get_config()
        return config
    except NotImplementedError:  # a schedule of the user's own, which cannot say what it is made of
        schedule = private.schedule_of(optimizer)
        rate = {"class": type(schedule).__name__, **_numbers_in(schedule)}
        return {**_numbers_in(optimizer), "learning_rate": rate}


def _numbers_in(item: object) -> dict[str, object]:
    return {n: v for n, v in vars(item).items() if type(v) in (bool, int, float, str)}


def _plain(value: object) -> str:
    """Say a value without names, numbers that Keras counts objects by, or places in memory."""
    if isinstance(value, dict):  # an optimizer in another, a schedule
        return repr({key: _plain(each) for key, each in value.items() if key != "name"})
    return unnumbered(re.sub(r" at 0x\w+", "", repr(value)))


def check_hyperparameters(said: Sequence[dict[str, str]]) -> None:
    """Raise `Desynchronized` where the ranks' optimizers differ. said: each rank's
    `hyperparameters`, in rank order."""
    for name, _ in differing(said)[:1]:
        what, _, where = name.partition(" of ")
        raise other_hyperparameters(what, where, [own.get(name) for own in said])


def _distribute(optimizer: Any, engine: Engine) -> None:
    """Have the optimizer's `apply` from now on take local gradients in a dream step."""
    inner = vars(optimizer).get("inner_optimizer")  # not there yet while it is being made
    if inner is not None:
        for name in ("apply", "scale_loss"):
            vars(inner).pop(name, None)  # its gradients come through the outer one
        engine.adopt_optimizer(inner)
    if "apply" in vars(optimizer):
        return

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        _reduce_and_apply(self, engine, list(grads), trainable_variables)

    optimizer.apply = MethodType(apply, optimizer)
    weigh_losses(optimizer)
    engine.adopt_optimizer(optimizer)


def weigh_losses(optimizer: Any) -> None:
    """Have the optimizer weigh a loss where it scales it, in a step that holds updates."""

    def scale_loss(self: Any, loss: Any) -> Any:
        scaled = type(self).scale_loss(self, loss)
        scope = _scope.get()
        if scope is None or scope.held is None:
            return scaled
        return scaled * keras.ops.cast(scope.weight, scaled.dtype)

    optimizer.scale_loss = MethodType(scale_loss, optimizer)


def _reduce_and_apply(optimizer: Any, engine: Engine, gradients: list[Any], variables: Any) -> None:
    """Apply what is global, hold what the step will reduce itself, reduce anything else here."""
    if variables is not None:
        variables = list(variables)
    if engine.mixed:  # the other framework's gradients are dense
        gradients = engine.dense(gradients, optimizer)
    scope = _scope.get()
    if scope is None and variables is not None and engine.averaged(gradients, variables):
        scope = Scope(reduced=True)
    if scope is None:
        if not _announced.get():
            _apply_whole(optimizer, engine, gradients, variables)
            return
        _announced.set(False)  # asking uses it up
        scope = Scope()
        _check_start(optimizer, engine, variables or [])
    if scope.reduced:
        apply_global(optimizer, engine, gradients, variables)
    elif not hold(optimizer, gradients, variables):
        whole = _reduced(engine, Update(optimizer, gradients, variables), scope.weight)
        apply_global(optimizer, engine, whole, variables)


def _apply_whole(optimizer: Any, engine: Engine, gradients: list[Any], variables: Any) -> None:
    """Apply the gradients of a loop of the user's own that nothing weighs: they are global already
    if the loop computes whole batches, the same on every part, and are refused if it does not."""
    received = f"{type(optimizer).__name__}.apply outside a dream step, replicas={engine.parts}"
    if not engine.whole_loops:
        raise ConfigurationError(unweighed(received))
    update_options = engine.update_options
    ignored = {
        "accumulate": update_options.accumulate if update_options.accumulates else None,
        "compression or op": (update_options.compression, update_options.op)
        if engine.exchange
        else None,
        "shares": engine.division.weights if engine.pace is None else "auto",
    }
    given = [f"{name}={value!r}" for name, value in ignored.items() if value is not None]
    if given:
        raise Unsupported(
            "A custom training loop computes whole batches, so there is nothing to divide or send. "
            f"Received: {', '.join(given)}, {type(optimizer).__name__}.apply outside a dream step. "
            "Remove that, take the step by strategy.train_step(model, loss, optimizer), or use "
            "model.fit."
        )
    check_scaled(update_options.precision, optimizer)
    _check_start(optimizer, engine, variables or [])
    whole = on_present(gradients, lambda present: engine.common(present, received))
    warn_once(
        "a custom training loop computes every whole batch on each replica, which is exact but no "
        "faster than one device; strategy.train_step or model.fit split the work"
    )
    engine.everywhere(lambda: apply_global(optimizer, engine, whole, variables))


def _reduced(engine: Engine, update: Update, weight: Any) -> list[Any]:
    """Return what all parts step on. weight: what this part's gradients count for, 1 for an equal
    share."""
    if engine.exchange is not None:
        return exchanged(engine, update, weight)
    mine = weight / engine.parts
    return on_present(update.gradients, lambda given: engine.total(engine.weigh(given, mine)))


def exchanged(engine: Engine, update: Update, weight: Any) -> list[Any]:
    """Return what all parts step on, by the engine's exchange."""
    assert engine.exchange is not None
    variables = update.variables
    if variables is None:
        inner = getattr(update.optimizer, "inner_optimizer", update.optimizer)
        variables = private.known_to(inner)
    gradients = on_present(
        update.gradients, lambda given: engine.weigh(engine.dense(given, update.optimizer), weight)
    )
    return engine.exchange.present(variables, gradients)


def apply_global(optimizer: Any, engine: Engine, gradients: list[Any], variables: Any) -> None:
    """Call Keras's own `apply` on global gradients; what it draws is of parameters, not of rows."""
    with reduced_scope(), engine.applying():
        alike(type(optimizer).apply, (optimizer, gradients, variables), {})


def adopt_clipping(optimizer: Any, update_options: UpdateOptions, *, by_norm: bool = True) -> None:
    """Have the optimizer, and the one in it, clip the global gradient where Keras clips; once: when
    it is complete and unscaled, after Keras's own accumulation, whatever wraps the optimizer.

    by_norm: whether it is given all of a gradient whose norm there is to clip by.
    """
    if not update_options.clips:
        return
    inner = vars(optimizer).get("inner_optimizer")
    for each in (optimizer,) if inner is None else (optimizer, inner):
        _check_clips_alone(each, update_options)
        if update_options.clip_norm is None or by_norm:
            private.replace_clipping(each, lambda gradients: clipped(gradients, update_options))


def clipped(gradients: Sequence[Any], update_options: UpdateOptions) -> list[Any]:
    """Clip the gradients of all variables together, by their common norm or by their values."""
    ops = keras.ops
    if update_options.clip_value is not None:
        most = update_options.clip_value
        return [None if g is None else ops.clip(g, -most, most) for g in gradients]
    assert update_options.clip_norm is not None
    present = [g for g in gradients if g is not None]
    doubles = any(keras.backend.standardize_dtype(g.dtype) == "float64" for g in present)
    kind = "float64" if doubles else "float32"
    norm = ops.sqrt(sum(ops.sum(ops.square(ops.cast(g, kind))) for g in present))
    scale = update_options.clip_norm / ops.maximum(norm, max(update_options.clip_norm, 1e-30))
    return [None if g is None else g * ops.cast(scale, g.dtype) for g in gradients]


def _check_clips_alone(optimizer: Any, update_options: UpdateOptions) -> None:
    names = ("clipnorm", "global_clipnorm", "clipvalue")
    given = [f"{name}={value!r}" for name in names if (value := getattr(optimizer, name, None))]
    if given:
        raise ConfigurationError(
            "The gradient would be clipped twice. Received: "
            f"{type(optimizer).__name__}({', '.join(given)}), "
            f"clip_norm={update_options.clip_norm!r}, clip_value={update_options.clip_value!r} of "
            "dream.strategy. Remove one."
        )


def adopt_by_hand(optimizer: Any, update_options: UpdateOptions) -> None:
    """Have an optimizer of an explicit step do what the update's options ask for."""
    adopt_clipping(optimizer, update_options)
    check_unscaled(optimizer, update_options)
    check_scaled(update_options.precision, optimizer)


def check_unscaled(optimizer: Any, update_options: UpdateOptions) -> None:
    """Refuse a loss scale beside a compression that remembers: what is left behind in one scale
    cannot be added to what comes in another."""
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scaled and update_options.compressed is not None and update_options.compressed.remembers:
        raise Unsupported(
            "What is not sent waits for the next gradient, and the loss scale changes meanwhile. "
            f"Received: {type(optimizer).__name__}, compression={update_options.compression!r}. "
            "Use compression='float16' or 'bfloat16', or precision='bfloat16', which needs no "
            "scale."
        )


def check_scaled(precision: str, optimizer: Any) -> None:
    """Refuse a float16 step by hand without a loss scale; compile brings one by itself."""
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if PRECISIONS[precision].scales and not scaled:
        raise ConfigurationError(
            "Gradients in float16 vanish without a loss scale. Received: "
            f"{type(optimizer).__name__} with precision={precision!r}. Give train_step "
            "keras.optimizers.LossScaleOptimizer(optimizer), or use compile and fit."
        )


_begun: WeakSet[Any] = WeakSet()
"""Optimizers that have taken a step of a loop by hand."""


def _check_start(optimizer: Any, engine: Engine, variables: Sequence[Any]) -> None:
    """Compare the ranks' weights before the first step of a loop by hand, which nothing of dream's
    came before: by then the gradients are those of this rank's own weights, so it is too late to
    take rank 0's."""
    if optimizer in _begun or not engine.several_processes:
        return
    _begun.add(optimizer)
    with engine.outside():
        mine = digest_of(np.asarray(v.numpy()) for v in variables)
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
