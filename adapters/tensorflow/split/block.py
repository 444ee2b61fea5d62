"""The block of a strategy on a mesh: Keras models and optimizers made in it are told so."""

from __future__ import annotations

from typing import Any, Protocol, final

import keras

from dream.adapters.keras.changes import Changes
from dream.adapters.tensorflow.split import files


class Takes(Protocol):
    """What changes the models and optimizers of a block."""

    def take(self, model: Any) -> Any: ...

    def optimizer(self, optimizer: Any) -> Any: ...


@final
class Block:
    """While it is open, the constructors of models and optimizers are changed, and the functions
    that save models."""

    def __init__(self, takes: Takes, rank: int) -> None:
        self._takes = takes
        self._rank = rank
        self._changes = Changes()

    def enter(self) -> None:
        self._changes.made(keras.Model, self._takes.take)
        self._changes.made(keras.optimizers.Optimizer, self._takes.optimizer)
        self._changes.saved(lambda save, name: files.together(save, name, self._rank))

    def exit(self) -> None:
        self._changes.undo()
