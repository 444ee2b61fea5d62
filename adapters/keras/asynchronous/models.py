"""The Keras objects of a worker: what changes on the instances, for life."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from types import MethodType
from typing import Any, final

import keras

from dream._errors import Unsupported
from dream.adapters.keras import files as keras_files
from dream.adapters.keras.asynchronous.fit import Steps, fit
from dream.adapters.keras.data.sources import Passes

_READ = ("evaluate", "predict", "test_on_batch", "predict_on_batch")


@final
class Models:
    """Takes the models and optimizers that a block makes. optimizer: what becomes of one."""

    def __init__(
        self, steps: Steps, seed: int, take_optimizer: Callable[[Any], Any], strategy: str
    ) -> None:
        self._steps, self._seed, self._strategy = steps, seed, strategy
        self.optimizer = take_optimizer

    def take(self, model: Any) -> Any:
        """The model, whose loops from now on are this worker's."""
        if "fit" in vars(model):
            return model
        model.fit = MethodType(self._fit(Passes()), model)
        for name in _READ:
            setattr(model, name, MethodType(self._read(name), model))
        model.train_on_batch = MethodType(self._refused, model)
        keras_files.distribute(model)
        return model

    def _fit(self, passes: Passes) -> Callable[..., Any]:
        steps, seed = self._steps, self._seed

        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            given = signature(keras.Model.fit).bind(model, *args, **kwargs)
            given.apply_defaults()
            del given.arguments["self"]
            with steps.looping():
                return fit(model, steps, passes, seed, dict(given.arguments))

        call.__name__ = "fit"
        return call

    def _read(self, name: str) -> Callable[..., Any]:
        """By each worker for itself, on the newest parameters."""
        steps = self._steps
        shows = "verbose" in signature(getattr(keras.Model, name)).parameters

        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            steps.refresh(model)
            if shows and steps.rank:
                kwargs["verbose"] = 0
            with steps.looping():
                return getattr(type(model), name)(model, *args, **kwargs)

        call.__name__ = name
        return call

    def _refused(self, model: Any, *_: Any, **__: Any) -> None:
        raise Unsupported(
            f"Under {self._strategy!r} a step is on a batch that was dealt. Received: "
            f"{model.name!r}.train_on_batch. Use fit, or strategy.train_step."
        )
