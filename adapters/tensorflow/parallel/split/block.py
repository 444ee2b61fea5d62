"""The block of a strategy on a mesh: Keras models and optimizers made in it are told so."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Protocol, final

import keras

from dream.adapters.keras import saving
from dream.adapters.keras.changes import Changes
from dream.adapters.keras.update import precision
from dream.adapters.tensorflow.parallel.split import files


class Takes(Protocol):
    """What changes the models and optimizers of a block."""

    def take(self, model: Any) -> Any: ...

    def optimizer(self, optimizer: Any) -> Any: ...


@final
class Block:
    """While it is open, the constructors of models and optimizers are changed, and the functions
    that save and load models. computes_in: the option `precision`."""

    def __init__(self, takes: Takes, rank: int, computes_in: str) -> None:
        self._takes = takes
        self._rank = rank
        self._computes_in = computes_in
        self._changes = Changes()
        self._open = ExitStack()

    def enter(self) -> None:
        self._open.enter_context(precision.policy(self._computes_in))
        self._changes.made(keras.Model, self._takes.take)
        self._changes.made(keras.optimizers.Optimizer, self._takes.optimizer)
        self._changes.filed(files.together(self._rank), saving.reading)

    def exit(self) -> None:
        self._changes.undo()
        self._open.close()
