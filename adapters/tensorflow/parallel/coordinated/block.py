"""Keras's models and optimizers in a block of TensorFlow's own parameter servers."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, final
from weakref import WeakSet

import keras
import tensorflow as tf

from dream._errors import ConfigurationError, Unsupported
from dream._patches import Patches
from dream.adapters.keras import private
from dream.adapters.keras.checkpoint import model_files
from dream.adapters.keras.hooks import take_made

_LOOPS = {
    "fit": "Remove engine: dream's own servers train by fit; or use strategy.train_step",
    "train_on_batch": "Use strategy.train_step",
    "evaluate": "Use strategy.evaluate",
    "predict": "Call strategy.schedule(model, args=(batch,))",
    "test_on_batch": "Use strategy.evaluate",
    "predict_on_batch": "Call strategy.schedule(model, args=(batch,))",
}
TRAINING = ("fit", "train_on_batch")


@final
class CoordinatedBlock:
    """While it is open, models and optimizers that are made are taken. refused: the loops that a
    model has no longer; several: whether optimizers are stepped by more than one at a time."""

    def __init__(self, *, refused: tuple[str, ...], several: bool, why: str) -> None:
        self._refused, self._several, self._why = refused, several, why
        self._patches = Patches()
        self._optimizers: WeakSet[Any] = WeakSet()
        self._models: WeakSet[Any] = WeakSet()

    def enter(self) -> None:
        take_made(self._patches, self._take_model, self._take_optimizer)

    def exit(self) -> None:
        self._patches.restore()

    def check_made_here(self, item: Any) -> None:
        """Refuse a model or an optimizer whose variables no server holds."""
        is_model = isinstance(item, keras.Model)
        if item in (self._models if is_model else self._optimizers):
            return
        raise ConfigurationError(
            "The servers hold only variables of objects created in the block. Received: a "
            f"{type(item).__name__} that was made outside it. Make it inside the block."
        )

    def _take_model(self, model: Any) -> None:
        if model in self._models:
            return
        self._models.add(model)
        for name in self._refused:
            setattr(model, name, MethodType(self._refusal(name), model))
        model_files.distribute(model)

    def _refusal(self, name: str) -> Callable[..., Any]:
        def call(model: Any, *_: Any, **__: Any) -> Any:
            raise Unsupported(f"{self._why}. Received: {model.name!r}.{name}. {_LOOPS[name]}.")

        call.__name__ = name
        return call

    def _take_optimizer(self, optimizer: Any) -> None:
        if optimizer in self._optimizers:
            return
        self._optimizers.add(optimizer)
        if not self._several:
            return
        if optimizer.gradient_accumulation_steps:
            raise Unsupported(
                "Asynchronous workers cannot tell which gradient is the last of an update. "
                f"Received: gradient_accumulation_steps={optimizer.gradient_accumulation_steps}. "
                "Remove it."
            )
        _count_at_once(private.counter(optimizer))


def _count_at_once(counter: Any) -> None:
    """Have an optimizer's count of updates be added to where it lies: Keras reads it and writes it
    back, and another worker's update between the two would be lost."""

    def assign_add(self: Any, value: Any) -> Any:
        return self.value.assign_add(tf.cast(value, self.value.dtype))

    counter.assign_add = MethodType(assign_add, counter)
