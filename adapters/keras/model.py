"""A distributed model: the methods that change on the instance, for life.

Its class stays, and with it how the model is saved, copied and pickled: copies are ordinary.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from types import MethodType
from typing import Any

import keras

from dream.adapters.keras import loops, optimizer, saving, start, steps
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.update import recomputing
from dream.data import tracked


def distribute(model: Any, engine: Engine) -> Any:
    """The model, trained and evaluated over the engine's parts from now on."""
    if "fit" in vars(model):
        return model
    engine.knobs.only(engine.honours, f"A Keras model on {engine.framework}")
    state = loops.State(engine)
    tracked.mark(model, state.standing)
    recomputing.adopt_when_called(model, engine)
    for name, loop in loops.LOOPS.items():
        if name == "fit" or engine.parts > 1 or (name == "train_on_batch" and engine.steps):
            setattr(model, name, MethodType(_loop(name, loop, state), model))
    if engine.steps and engine.parts == 1:
        model.train_step = MethodType(_step("train_step", steps.train, engine), model)
    if engine.parts > 1:
        engine.adopt_model(model)
        for name, step in _STEPS:
            setattr(model, name, MethodType(_step(name, step, engine), model))
        model.compile = MethodType(_compile(engine), model)
        saving.distribute(model)
        _distribute_optimizers(model, engine)
    return model


def _loop(name: str, loop: Callable[..., Any], state: loops.State) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature(getattr(keras.Model, name)).bind(self, *args, **kwargs)
        given.apply_defaults()
        del given.arguments["self"]
        extra = given.arguments.pop("kwargs", {})
        with state.engine.looping():
            return loop(self, state, {**given.arguments, **extra})

    call.__name__ = name
    return call


_STEPS = (
    ("train_step", steps.train),
    ("test_step", steps.test),
    ("compute_loss", steps.compute_loss),
)


def _step(name: str, step: Callable[..., Any], engine: Engine) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return step(self, engine, *args, **kwargs)

    call.__name__ = name
    return call


def _compile(engine: Engine) -> Callable[..., Any]:
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        with engine.creating():
            type(self).compile(self, *args, **kwargs)
        given = signature(type(self).compile).bind(self, *args, **kwargs).arguments
        start.check_compilation(self, engine, given.get("jit_compile"))
        _distribute_optimizers(self, engine)

    return compile


def _distribute_optimizers(model: Any, engine: Engine) -> None:
    for found in start.optimizers_of(model):
        optimizer.take(found, engine)
