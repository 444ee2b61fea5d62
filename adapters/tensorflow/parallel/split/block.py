"""The block of a strategy on a mesh: Keras models and optimizers made in it are told so."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Protocol, final

import keras

from dream.adapters.keras import files as keras_files
from dream.adapters.keras.hooks import KerasPatches, dtype_policy
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
        self._patches = KerasPatches()
        self._open = ExitStack()

    def enter(self) -> None:
        self._open.enter_context(dtype_policy(self._computes_in))
        self._patches.on_created(keras.Model, self._takes.take)
        self._patches.on_created(keras.optimizers.Optimizer, self._takes.optimizer)
        self._patches.wrap_files(files.together(self._rank), keras_files.reading)

    def exit(self) -> None:
        self._patches.undo()
        self._open.close()
