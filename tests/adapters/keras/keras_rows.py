"""Batches of tensors that differ in their rows, and models that draw, or take strings, where a
batch is shared."""

from __future__ import annotations

import logging
import logging.handlers
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras_own_numbers import ended, numbers

import dream

__all__ = ["ended", "said_of_rows"]
WIDTH = 6
"""As many as joined parts of a batch that a step is tried on have rows: 3 and 3."""


class _Zipped(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of two tensors, the sizes of whose batches differ."""

    def __init__(self, *sizes: tuple[int, int]) -> None:
        super().__init__()
        draw = np.random.default_rng(0)
        self._batches = [
            tuple(draw.normal(size=(n, WIDTH)).astype("float32") for n in each) for each in sizes
        ]

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._batches[index]


class Two(keras.Model):  # type: ignore[misc]
    """Two losses, each a mean over a tensor of its own. joined: both tensors are given to a layer
    one behind the other."""

    def __init__(self, rate: float, *, joined: bool = False) -> None:
        super().__init__()
        self.joined = joined
        self.inner = keras.Sequential([layers.Dropout(rate, seed=3), layers.Dense(2)])
        self.inner.build((None, WIDTH))
        self.built = True

    def call(self, x: Any, training: Any = None) -> Any:
        return self.inner(x, training=training)

    def train_step(self, batch: Any) -> Any:
        def loss() -> Any:
            if self.joined:
                few = ops.shape(batch[0])[0]
                both = self.inner(ops.concatenate(batch), training=True)
                return ops.mean(both[:few] ** 2) + ops.mean((both[few:] - 1) ** 2)
            few, many = (self.inner(x, training=True) for x in batch)
            return ops.mean(few**2) + ops.mean((many - 1) ** 2)

        weights = self.trainable_variables
        if keras.backend.backend() == "torch":
            self.zero_grad()
            value = loss()
            value.backward()
            self.optimizer.apply([v.value.grad for v in weights], weights)
            return {"value": value}
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        self.optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
        return {"value": value}


def _trained(*sizes: tuple[int, int], rate: float = 0.0, joined: bool = False) -> list[Any]:
    keras.utils.set_random_seed(1)
    made = Two(rate, joined=joined)
    made.compile(keras.optimizers.SGD(0.1))
    made.fit(_Zipped(*sizes), epochs=2, verbose=0)
    return made.get_weights()  # type: ignore[no-any-return]


@numbers
def many_rows_for_each_sample() -> list[Any]:
    """Of the second tensor, or of the first."""
    return [*_trained((4, 12), (3, 9), rate=0.3), *_trained((12, 4), (6, 2), rate=0.3)]


@numbers
def many_rows_behind_each_other() -> list[Any]:
    """As the views of labelled samples and of others, which are drawn for at once."""
    sizes = (4, 12), (3, 9), (6, 2)
    return [each for s in sizes for each in _trained(s, s, rate=0.5, joined=True)]


@numbers
def a_single_row_beside_a_batch() -> list[Any]:
    return [*_trained((5, 1), (4, 1)), *_trained((1, 5))]


class Drawing(keras.Model):  # type: ignore[misc]
    def __init__(self, generator: Any) -> None:
        super().__init__()
        self.dense, self.generator = layers.Dense(2), generator

    def call(self, x: Any) -> Any:
        h = self.dense(x)
        return h + keras.random.normal(ops.shape(h), seed=self.generator)


@numbers
def predictions_of_what_draws() -> list[Any]:
    """By a generator of its own, and by Keras's; of arrays and of datasets."""
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(11, WIDTH)).astype("float32")
    batches = tf.data.Dataset.from_tensor_slices((x, x)).batch(4)
    found = []
    for generator in (keras.random.SeedGenerator(2), None):
        made = Drawing(generator)
        made(x[:1])
        found += [made.predict(x, batch_size=4, verbose=0) for _ in range(2)]
        found += [made.predict(batches, verbose=0), made.predict(batches, steps=2, verbose=0)]
    return found


@numbers
def strings() -> list[Any]:
    """A model with an operation of its own."""
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    words, y = tf.constant([["a"], ["b"], ["a"], ["c"], ["b"]]), np.arange(5.0)
    inputs = keras.Input((1,), dtype="string")
    one_hot = layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(inputs)
    made = keras.Model(inputs, layers.Dense(1)(ops.log(one_hot + 1.0)))
    made.compile(keras.optimizers.SGD(0.1), "mse")
    made.fit(tf.data.Dataset.from_tensor_slices((words, y)).batch(4), epochs=2, verbose=0)
    return [*made.get_weights(), made.predict(words, verbose=0)]


def said_of_rows() -> list[str]:
    """What is said of batches that divide alike, and then of one that does not."""
    heard = logging.handlers.BufferingHandler(1000)
    logging.getLogger("dream").addHandler(heard)
    with dream.strategy("mirrored"):
        _trained((4, 12), (2, 6), (2, 1))
        _trained((4, 4), (2, 2), rate=0.5, joined=True)
        before = len(heard.buffer)
        found = _trained((3, 5))
    assert all(np.isfinite(each).all() for each in found)
    said = [record.getMessage() for record in heard.buffer]
    return ["\n".join(said[:before]), "\n".join(said[before:])]
