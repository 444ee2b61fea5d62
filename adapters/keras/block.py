"""The block around Keras code: models and optimizers made in it, or given to it, train over its
engine's parts.

The methods of a model change on the instance, for life. Its class stays, and with it how it is
saved, copied and pickled: copies are ordinary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from inspect import signature
from types import MethodType
from typing import Any, final

import keras

from dream import _observers, stall
from dream._errors import Unsupported
from dream._patches import Patches
from dream.adapters.keras import (
    checks,
    consistency,
    fit,
    losses,
    optimizer,
    recompute,
    step,
)
from dream.adapters.keras.checkpoint import model_files
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.hooks import PHASE_RULES, dtype_policy, on_created, wrap_files
from dream.adapters.keras.update import batch_norm
from dream.data import tracked


@final
class KerasBlock:
    """Distributes the models and optimizers that are made while it is open."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._patches = Patches()
        self._open = ExitStack()

    def enter(self) -> None:
        stall.phases_inside(PHASE_RULES)
        for observer in _observers.registered:
            observer.entering_keras()
        engine = self.engine
        self._open.enter_context(engine.creating())
        self._open.enter_context(dtype_policy(engine.update_options.precision))
        on_created(self._patches, keras.Model, lambda made: distribute(made, engine))
        if engine.steps or engine.update_options.clips:
            on_created(
                self._patches, keras.optimizers.Optimizer, lambda made: optimizer.take(made, engine)
            )
        if engine.parts > 1:
            wrap_files(self._patches, model_files.writing, model_files.reading)

    def exit(self) -> None:
        self._patches.restore()
        self._open.close()

    def prepare(self, item: Any) -> Any:
        """Distribute a model or an optimizer that was made before the block."""
        if isinstance(item, keras.Model):
            return distribute(item, self.engine)
        if isinstance(item, keras.optimizers.Optimizer):
            return optimizer.take(item, self.engine)
        return item

    def takes(self, item: Any) -> bool:
        """Whether this is a model or an optimizer of Keras's."""
        return isinstance(item, (keras.Model, keras.optimizers.Optimizer))

    def start(self, item: Any) -> None:
        """Do what `fit` does beside agreeing on variables, for a first step taken by hand."""
        if not isinstance(item, keras.Layer):
            return
        consistency.report_micro_draws(item, self.engine)
        if self.engine.parts > 1:
            batch_norm.synchronise(item, self.engine)
            consistency.report_local_statistics(item, self.engine)


def distribute(model: Any, engine: Engine) -> Any:
    """Have the model trained and evaluated over the engine's parts from now on."""
    if "fit" in vars(model):
        return model
    engine.update_options.only(engine.honours, f"A Keras model on {engine.framework}")
    if not engine.fits:
        engine.update_options.refuse_fitting(f"A Keras model on {engine.framework}")
    if not engine.chooses or engine.mixed:
        engine.update_options.refuse_choosing(f"A Keras model on {engine.framework}")
    if engine.draws_locally and engine.parts > 1:
        raise Unsupported(
            "In Keras models dropout and noise are always drawn for the global batch. Received: "
            f"randomness='local' for {model.name!r}. Remove randomness."
        )
    state = fit.FitState(engine)
    tracked.mark(model, state.progress)
    recompute.adopt_when_called(model, engine)
    for name, loop in fit.LOOPS.items():
        if name == "fit" or engine.parts > 1 or (name == "train_on_batch" and engine.steps):
            _bind(model, name, _loop(name, loop, state))
    _bind(model, "make_train_function", _with(fit.make_train_function, state))
    if engine.steps and engine.parts == 1:
        _bind(model, "train_step", _with(step.train_step, engine))
    if engine.parts > 1:
        engine.adopt_model(model)
        for function in (step.train_step, step.test_step, losses.compute_loss):
            _bind(model, function.__name__, _with(function, engine))
        model.compile = MethodType(_compile(engine), model)
        model_files.distribute(model)
        optimizer.take_all(model, engine)
    return model


def _bind(model: Any, name: str, method: Callable[..., Any]) -> None:
    method.__name__ = name
    setattr(model, name, MethodType(method, model))


def _loop(name: str, loop: Callable[..., Any], state: fit.FitState) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with state.engine.looping():
            return loop(self, state, arguments_of(self, name, args, kwargs))

    return call


def arguments_of(
    model: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call of one of Keras's loops by name, the defaults among them."""
    bound = signature(getattr(keras.Model, name)).bind(model, *args, **kwargs)
    bound.apply_defaults()
    del bound.arguments["self"]
    extra = bound.arguments.pop("kwargs", {})
    return {**bound.arguments, **extra}


def _with(function: Callable[..., Any], bound: Any) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, bound, *args, **kwargs)

    return call


def _compile(engine: Engine) -> Callable[..., Any]:
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        with engine.creating():
            type(self).compile(self, *args, **kwargs)
        given = signature(type(self).compile).bind(self, *args, **kwargs).arguments
        checks.check_compilation(self, engine, given.get("jit_compile"))
        optimizer.take_all(self, engine)

    return compile
