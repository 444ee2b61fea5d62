"""The variables of a model whose stages lie on several ranks: this rank's own, and the others'.

Outside of a tf.function either reads as its owner has it, which all ranks take part in.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream._errors import ConfigurationError, Unsupported
from dream._patches import value_set
from dream.adapters.tensorflow.keras.private import put_in_place
from dream.adapters.tensorflow.parallel.consistency import Consistency, PartialVariable
from dream.adapters.tensorflow.private import ResourceVariable
from dream.collectives import Communicator

_only_shapes: ContextVar[bool] = ContextVar("dream.only_shapes", default=False)


def only_shapes() -> AbstractContextManager[None]:
    """Inside, a graph is made to learn shapes, and no value counts."""
    return value_set(_only_shapes, True)


@dataclass(frozen=True, slots=True)
class Home:
    """Where a variable is: the rank whose value counts, and whether it is here too."""

    owner: int
    here: bool
    consistency: Consistency
    communicator: Communicator

    def owners_value(self, name: str, value: Callable[[], Any]) -> NDArray[Any]:
        """The owner's value. Every rank calls it."""
        self.consistency.read(name)
        found: NDArray[Any] = self.communicator.broadcast(np.array(value()), self.owner)
        return found


@final
class OwnedVariable(PartialVariable, ResourceVariable):  # type: ignore[misc]  # TensorFlow is untyped
    """A variable of one of this rank's stages."""

    def __init__(self, array: NDArray[Any], home: Home, *, trains: bool, called: str) -> None:
        """trains, called: `trainable` and `name`, words that TensorFlow takes for itself."""
        super().__init__(array, trainable=trains, name=called)
        self._called = called
        self.home = home

    def value(self) -> tf.Tensor:
        return tf.convert_to_tensor(self.numpy()) if tf.executing_eagerly() else super().value()

    def read_value(self) -> tf.Tensor:
        return self.value()

    def read_together(self) -> NDArray[Any]:
        return self.home.owners_value(self._called, super().value)

    def assign(
        self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        if not tf.executing_eagerly():
            return super().assign(value, use_locking, name, read_value)
        array = np.asarray(value)
        self.home.consistency.changed(array)
        super().assign(array, read_value=False)
        return self


@final
class RemoteVariable(PartialVariable):
    """A variable that other ranks have."""

    device = "CPU:0"  # where what Keras makes beside it goes

    def __init__(
        self, shape: tf.TensorShape, dtype: tf.DType, home: Home, *, trains: bool, called: str
    ) -> None:
        self.shape, self.dtype, self.trainable = shape, dtype, trains
        self.name = f"{called}:0"
        self._called = called
        self.home = home

    def value(self) -> tf.Tensor:
        return tf.convert_to_tensor(self.numpy())

    def read_together(self) -> NDArray[Any]:
        return self.home.owners_value(self._called, self._blank)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.asarray(self.numpy() if tf.executing_eagerly() else self._in_graph(), dtype)

    def _in_graph(self) -> NDArray[Any]:
        if _only_shapes.get():
            return self._blank()
        raise ConfigurationError(
            "A variable of another rank cannot be used in a tf.function. Received: "
            f"{self.name[:-2]!r}, of rank {self.home.owner}. Call the model by fit, evaluate, "
            "predict, strategy.train_step or strategy.evaluate."
        )

    def assign(self, value: Any, *_: Any, **__: Any) -> Any:
        """Its owner, which is told the same, takes the value; in a graph as here, in its own."""
        if tf.executing_eagerly():
            self.home.consistency.changed(np.asarray(value))
        return self

    def _blank(self) -> NDArray[Any]:
        return np.zeros(self.shape.as_list(), self.dtype.as_numpy_dtype)


def made(
    array: NDArray[Any], home: Home, *, trains: bool, called: str
) -> OwnedVariable | RemoteVariable:
    """Make what stands for a variable of this value on this rank."""
    if home.here:
        return OwnedVariable(array, home, trains=trains, called=called)
    shape, dtype = tf.TensorShape(array.shape), tf.as_dtype(array.dtype)
    return RemoteVariable(shape, dtype, home, trains=trains, called=called)


def send_home(variable: Any, home: Home) -> None:
    """Have a Keras variable lie where it belongs from now on."""
    own = variable.value
    if isinstance(own, (OwnedVariable, RemoteVariable)):
        if own.home.owner != home.owner:
            raise Unsupported(
                "Models that share layers have stages of their own, and a layer lies on one rank. "
                f"Received: {variable.path!r}, of rank {own.home.owner} in one model and of rank "
                f"{home.owner} in another. Use 'sharded' or 'mirrored', or one process with "
                "devices=."
            )
    else:
        put_in_place(
            variable,
            made(np.asarray(own), home, trains=own.trainable, called=own.name[:-2]),
        )
