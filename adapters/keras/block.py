"""The block: what Keras objects made inside it are told as they are made."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any, final

import keras

from dream import _observers
from dream.adapters.keras import model, optimizer, saving, start
from dream.adapters.keras.changes import Changes
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.update import batch_norm, precision


@final
class KerasBlock:
    """While it is open, the constructors of models and optimizers are changed, and the functions
    that save and load models."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._changes = Changes()
        self._open = ExitStack()

    def creating(self) -> AbstractContextManager[Any]:
        """Where variables are created so that every replica has its copy."""
        return self.engine.creating()

    def enter(self) -> None:
        for observer in _observers.registered:
            observer.entering_keras()
        self._open.enter_context(self.creating())
        self._open.enter_context(precision.policy(self.engine.knobs.precision))
        self._changes.made(keras.Model, lambda made: model.distribute(made, self.engine))
        if self.engine.steps or self.engine.knobs.clips:
            self._changes.made(
                keras.optimizers.Optimizer, lambda made: optimizer.take(made, self.engine)
            )
        if self.engine.parts > 1:
            self._changes.filed(saving.writing, saving.reading)

    def exit(self) -> None:
        self._changes.undo()
        self._open.close()

    def prepare(self, item: Any) -> Any:
        """A model or an optimizer that was made before the block, distributed."""
        if isinstance(item, keras.Model):
            return model.distribute(item, self.engine)
        if isinstance(item, keras.optimizers.Optimizer):
            return optimizer.take(item, self.engine)
        return item

    def takes(self, item: Any) -> bool:
        """Whether this is a model or an optimizer of Keras's."""
        return isinstance(item, (keras.Model, keras.optimizers.Optimizer))

    def start(self, item: Any) -> None:
        """What `fit` does beside agreeing on variables, for a first step taken by hand."""
        if self.engine.parts > 1 and isinstance(item, keras.Layer):
            batch_norm.take(item, self.engine)
            start.offset_seeds(item, self.engine)
            start.tell_of_statistics(item, self.engine)
