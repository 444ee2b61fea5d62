"""The block of replicas that step alone: Keras models and optimizers made in it are told so."""

from __future__ import annotations

from typing import Any, final

import keras

from dream.adapters.keras import files as keras_files
from dream.adapters.keras.asynchronous.models import Models
from dream.adapters.keras.hooks import KerasPatches


@final
class Block:
    """While it is open, the constructors of models and optimizers are changed, and the functions
    that save and load models."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._patches = KerasPatches()

    def enter(self) -> None:
        self._patches.on_created(keras.Model, self._models.take)
        self._patches.on_created(keras.optimizers.Optimizer, self._models.optimizer)
        self._patches.wrap_files(keras_files.writing, keras_files.reading)

    def exit(self) -> None:
        self._patches.undo()

    def takes(self, item: Any) -> bool:
        """Whether this is a model or an optimizer of Keras's."""
        return isinstance(item, (keras.Model, keras.optimizers.Optimizer))

    def prepare(self, item: Any) -> Any:
        """A model or an optimizer that was made before the block."""
        if isinstance(item, keras.Model):
            return self._models.take(item)
        return self._models.optimizer(item)
