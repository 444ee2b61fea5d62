"""Sources on TensorFlow that epochs end within: how far they are read ahead, which changes what
comes where passes are shuffled anew."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers
from keras_own_numbers import ended, numbers

import dream

__all__ = ["ended", "read_as_epochs_end"]
ROWS, BATCH, WIDTH = 48, 8, 5


def _data() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("float32")
    return x, np.abs(x[:, :1])


def _shuffled() -> Any:
    """Samples that each pass shuffles anew, whoever begins it."""
    import tensorflow as tf

    keras.utils.set_random_seed(3)
    return tf.data.Dataset.from_tensor_slices(_data()).shuffle(ROWS, seed=2)


def _fitted(data: Any, held_out: Any) -> list[Any]:
    made = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.1), "mse")
    logs = made.fit(
        data, epochs=4, steps_per_epoch=3, validation_data=held_out, validation_steps=2, verbose=0
    )
    return [*made.get_weights(), *logs.history.values()]


@numbers
def a_dataset_that_is_validated_on_too() -> list[Any]:
    """Three epochs are two passes."""
    found: list[Any] = []
    for end in (lambda data: data, lambda data: data.prefetch(1)):
        data = end(_shuffled().batch(BATCH).repeat())
        found.extend(_fitted(data, data))
    return found


@numbers
def parts_of_a_dataset() -> list[Any]:
    """A pass of what is trained on is four batches, one of what is validated on two. TensorFlow
    reads the former one ahead, and the latter as far as it calls the map at a time."""
    found: list[Any] = []
    for end in (lambda data: data, lambda data: data.map(lambda x, y: (2 * x, y))):
        whole = _shuffled()
        parts = (whole.skip(2 * BATCH), whole.take(2 * BATCH))
        found.extend(_fitted(*(end(part.batch(BATCH).repeat()) for part in parts)))
    return found


class _Counted(keras.utils.PyDataset):  # type: ignore[misc]
    """Notes how many batches have been read as an epoch ends."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.ends = 0, [0]

    def __len__(self) -> int:
        return ROWS // BATCH

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        x, y = _data()
        return x[index * BATCH : (index + 1) * BATCH], y[index * BATCH : (index + 1) * BATCH]

    def on_epoch_end(self) -> None:
        self.ends.append(self.read)


def read_as_epochs_end() -> list[int]:
    """How many batches of a PyDataset are read in each epoch, which are of two."""
    with dream.strategy("mirrored"):
        made = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(1)])
        made.compile(keras.optimizers.SGD(0.1), "mse")
        data = _Counted()
        made.fit(data, epochs=4, steps_per_epoch=2, verbose=0)
    return np.diff(data.ends).tolist()
