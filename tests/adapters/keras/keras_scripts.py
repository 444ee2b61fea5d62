"""Scripts as people write them, run as they are: without dream, or in its block."""

from __future__ import annotations

import gc
import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np
from keras import layers, ops

import dream

TF = keras.backend.backend() == "tensorflow"
Figures = dict[str, Any]
Script = Callable[[], Figures]
SCRIPTS: dict[str, Script] = {}


def script(function: Script) -> Script:
    """Note one. Its blocks are opened by `block`."""
    SCRIPTS[function.__name__] = function
    return function


_options: dict[str, Any] | None = None


def block() -> AbstractContextManager[Any]:
    return nullcontext() if _options is None else dream.strategy("mirrored", **_options)


def run(options: dict[str, Any] | None, names: list[str]) -> dict[str, Figures | str]:
    """Return what each script ends with, or how it ended. options: None without dream."""
    global _options
    _options = options
    found: dict[str, Figures | str] = {}
    for name in names:
        try:
            found[name] = SCRIPTS[name]()
        except Exception:
            found[name] = traceback.format_exc()
    gc.collect()  # else TensorFlow, as the interpreter ends, waits for threads that read for ever
    return found


def images(count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(count, 8, 8, 1)).astype("float32")
    return x, (np.abs(x).sum((1, 2, 3)) * 7 % 4).astype("int32")


def vectors(count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(count, 6)).astype("float32")
    return x, (x[:, :1] * 2 - x[:, 1:2]).astype("float32")


def sentences(count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = np.random.default_rng(6).integers(0, 12, (count, 5)).astype("int32")
    return x, (x.sum(1) % 2).astype("int32")


def momentum() -> Any:
    return keras.optimizers.SGD(0.02, momentum=0.9)


def figures(model: Any, history: Any = None, **more: Any) -> Figures:
    """Return weights, logs, and what every generator draws next."""
    told = {} if history is None else history.history
    return {
        **{f"weight {i}": w for i, w in enumerate(model.get_weights())},
        **{f"log {name}": np.array(values) for name, values in told.items()},
        **{name: np.asarray(value) for name, value in more.items()},
        "iterations": np.array(model.optimizer.iterations),
        "next of python": random.random(),
        "next of numpy": np.random.rand(),
        "next of keras": np.asarray(ops.convert_to_numpy(keras.random.normal((2,)))),
        "next of the framework": _framework_draw(),
    }


def _framework_draw() -> float:
    if TF:
        import tensorflow as tf

        return float(tf.random.uniform([]))
    import torch

    return float(torch.rand(()))


@script
def convnet() -> Figures:
    """mnist_convnet: dropout, shuffled, a validation split, a short last batch."""
    keras.utils.set_random_seed(1)
    x, y = images(57)
    with block():
        model = keras.Sequential([
            keras.Input((8, 8, 1)), layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(), layers.Dropout(0.25), layers.Flatten(), layers.Dropout(0.5),
            layers.Dense(4, activation="softmax"),
        ])  # fmt: skip
        model.compile(momentum(), "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = model.fit(x, y, batch_size=16, epochs=2, validation_split=0.2, verbose=0)
        score = model.evaluate(x, y, verbose=0)
    return figures(model, history, score=score, predicted=model.predict(x, verbose=0))


@script
def two_fits_in_a_row() -> Figures:
    """In batches shuffled inside, then wholly; weights of classes and of samples."""
    keras.utils.set_random_seed(2)
    x, y = images(45)
    with block():
        model = keras.Sequential([layers.Flatten(), layers.Dense(8, "relu"), layers.Dropout(0.3),
                                  layers.Dense(4)])  # fmt: skip
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(momentum(), loss)
        model.fit(x, y, batch_size=8, epochs=2, shuffle="batch", verbose=0,
                  class_weight={0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0})  # fmt: skip
        history = model.fit(x, y, batch_size=10, initial_epoch=2, epochs=4, verbose=0,
                            sample_weight=np.linspace(0.5, 1.5, 45), steps_per_epoch=3)  # fmt: skip
    return figures(model, history)


@script
def folds() -> Figures:
    """Cross-validation: a model for each fold, cut by NumPy in the block."""
    keras.utils.set_random_seed(3)
    x, y = vectors(40)
    scores = []
    with block():
        order = np.random.permutation(40)
        for fold in np.array_split(order, 3):
            rest = np.setdiff1d(order, fold)
            np.random.shuffle(rest)
            model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "tanh"),
                                      layers.Dropout(0.2), layers.Dense(1)])  # fmt: skip
            model.compile(momentum(), "mse", metrics=["mae"])
            history = model.fit(x[rest], y[rest], batch_size=8, epochs=2, verbose=0)
            scores.append(model.evaluate(x[fold], y[fold], verbose=0))
    return figures(model, history, scores=scores)


@keras.saving.register_keras_serializable("strangers")
class Sampling(layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Draws z, by a generator of its own or by Keras's."""

    def __init__(self, own: bool = True) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1337) if own else None

    def call(self, inputs: Any) -> Any:
        mean, log_var = inputs
        batch, dim = ops.shape(mean)[0], ops.shape(mean)[1]
        epsilon = keras.random.normal(shape=(batch, dim), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * epsilon


def _autoencoder(own: bool) -> Figures:
    x, _ = vectors(50)
    with block():
        inputs = keras.Input((6,))
        hidden = layers.Dense(8, activation="relu")(inputs)
        mean, log_var = layers.Dense(2)(hidden), layers.Dense(2)(hidden)
        outputs = layers.Dense(6)(Sampling(own)([mean, log_var]))
        model = keras.Model(inputs, outputs)
        model.compile(momentum(), "mse")
        history = model.fit(x, x, batch_size=16, epochs=3, verbose=0, validation_data=(x, x))
        found = figures(model, history)
        if "devices" in (_options or ()):  # TensorFlow itself cuts batches there
            return found
        predicted = model.predict(x, batch_size=16, verbose=0)
    return {**found, "predicted": predicted, "then": figures(model, history)["next of keras"]}


@script
def vae() -> Figures:
    """A generator of the layer's own. It draws in validation and prediction, too."""
    keras.utils.set_random_seed(4)
    return _autoencoder(own=True)


@script
def vae_of_the_global_generator() -> Figures:
    keras.utils.set_random_seed(5)
    return _autoencoder(own=False)


@script
def transformer() -> Figures:
    keras.utils.set_random_seed(6)
    x, y = sentences(42)
    with block():
        inputs = keras.Input((5,), dtype="int32")
        h = layers.Embedding(12, 8)(inputs)
        h = layers.LayerNormalization()(
            h + layers.Dropout(0.1)(layers.MultiHeadAttention(2, 4, dropout=0.2)(h, h))
        )
        h = layers.GlobalAveragePooling1D()(layers.SpatialDropout1D(0.2)(h))
        model = keras.Model(inputs, layers.Dense(2, activation="softmax")(h))
        model.compile(momentum(), "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = model.fit(x, y, batch_size=10, epochs=2, verbose=0)
    return figures(model, history)


@script
def noise() -> Figures:
    """Every noisy layer, and augmentation in the model; seeded layers beside unseeded ones."""
    keras.utils.set_random_seed(7)
    x, y = images(39)
    with block():
        model = keras.Sequential([
            keras.Input((8, 8, 1)), layers.RandomFlip(), layers.RandomTranslation(0.2, 0.2),
            layers.RandomRotation(0.1), layers.RandomZoom(0.1), layers.RandomContrast(0.2),
            layers.GaussianNoise(0.1),
            layers.Conv2D(3, 3), layers.SpatialDropout2D(0.3, seed=9),
            layers.GaussianDropout(0.2), layers.Flatten(), layers.AlphaDropout(0.2),
            layers.Dropout(0.3, noise_shape=(None, 1)), layers.Dropout(0.2, seed=11),
            layers.Dense(4),
        ])  # fmt: skip
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(momentum(), loss)
        history = model.fit(x, y, batch_size=13, epochs=2, verbose=0)
    return figures(model, history)


@script
def recurrent() -> Figures:
    keras.utils.set_random_seed(8)
    x, y = sentences(33)
    with block():
        model = keras.Sequential([
            layers.Embedding(12, 6),
            layers.Bidirectional(layers.LSTM(4, dropout=0.2, recurrent_dropout=0.1)),
            layers.Dense(2),
        ])  # fmt: skip
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(momentum(), loss)
        history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return figures(model, history)


@script
def recurrent_one_way() -> Figures:
    """Masks of inputs and of states, drawn around a loop of the framework's."""
    keras.utils.set_random_seed(8)
    x, y = sentences(33)
    with block():
        cells = layers.SimpleRNN(4, dropout=0.2, recurrent_dropout=0.1)
        model = keras.Sequential([layers.Embedding(12, 6), cells, layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(momentum(), loss)
        history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return figures(model, history)


class Pairs(keras.utils.PyDataset):  # type: ignore[misc]  # Keras is untyped
    """Reshuffled by itself after each epoch; its noise is drawn as a batch is made."""

    def __init__(self, x: Any, y: Any, size: int) -> None:
        super().__init__()
        self.x, self.y, self.size, self.order = x, y, size, np.arange(len(x))

    def __len__(self) -> int:
        return -(-len(self.x) // self.size)

    def __getitem__(self, index: int) -> Any:
        at = self.order[index * self.size : (index + 1) * self.size]
        return self.x[at] * np.float32(np.random.uniform(0.9, 1.1)), self.y[at]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)


@script
def python_dataset() -> Figures:
    keras.utils.set_random_seed(9)
    x, y = vectors(43)
    with block():
        model = keras.Sequential([layers.Dense(6, "tanh"), layers.Dropout(0.2), layers.Dense(1)])
        model.compile(momentum(), "mse")
        history = model.fit(Pairs(x, y, 10), epochs=3, verbose=0)
        rest = {"shuffle": False, "validation_data": Pairs(x, y, 20), "verbose": 0}
        history = model.fit(Pairs(x, y, 10), epochs=2, **rest)
    return figures(model, history)


@script
def frameworks_own_data() -> Figures:
    """tf.data that shuffles, and torch's loader, with and without the last batch."""
    keras.utils.set_random_seed(10)
    x, y = vectors(41)
    with block():
        model = keras.Sequential([layers.Dense(6, "tanh"), layers.Dropout(0.2), layers.Dense(1)])
        model.compile(momentum(), "mse")
        history = model.fit(_shuffled(x, y), epochs=3, verbose=0)
        data = _shuffled(x, y, drop=True)
        history = model.fit(data, epochs=2, verbose=0)
    return figures(model, history)


def _shuffled(x: Any, y: Any, drop: bool = False) -> Any:
    if TF:
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(10, drop)
    import torch

    pairs = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return torch.utils.data.DataLoader(pairs, batch_size=10, shuffle=True, drop_last=drop)


@script
def generated() -> Figures:
    keras.utils.set_random_seed(11)
    x, y = vectors(40)

    def batches() -> Iterator[Any]:
        while True:
            if os.environ.get("RANK", "0") != "0":
                time.sleep(0.05)  # how far ranks read ahead differs
            at = np.random.randint(0, 40, 9)
            yield x[at], y[at]

    with block():
        model = keras.Sequential([layers.Dense(6, "tanh"), layers.Dropout(0.2), layers.Dense(1)])
        model.compile(momentum(), "mse")
        history = model.fit(batches(), steps_per_epoch=4, epochs=2, verbose=0)
    told = figures(model, history)
    del told["next of numpy"]  # batches are drawn ahead, in a thread
    return told


@script
def computed_again() -> Figures:
    """In a RematScope, by a thread as on a GPU. TensorFlow's can't do so to BatchNorm."""
    keras.utils.set_random_seed(15)
    x, y = vectors(31)
    with block(), _backward_in_a_thread(), nullcontext() if TF else keras.RematScope("full"):
        inner = [layers.BatchNormalization(), layers.Dropout(0.3, seed=5)]
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(6, "tanh"), *inner, layers.Dense(1)]
        )
        model.compile(momentum(), "mse")
        losses = model.fit(x, y, batch_size=10, epochs=2, verbose=0).history["loss"]
    return figures(model, losses=losses)


@contextmanager
def _backward_in_a_thread() -> Iterator[None]:
    if TF:
        yield
        return
    import torch

    engine = torch.autograd.graph._engine_run_backward

    def run(*args: Any, **kwargs: Any) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(engine, *args, **kwargs).result()

    torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = engine  # type: ignore[attr-defined]


@script
def step_by_hand() -> Figures:
    """strategy.train_step: without dream, Keras's own train_on_batch. The last batch is of one
    sample."""
    keras.utils.set_random_seed(12)
    x, y = vectors(31)
    with block() as strategy:
        noisy = [layers.Dropout(0.3, seed=5), layers.GaussianNoise(0.1)]
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(6, "tanh"), *noisy, layers.Dense(1)]
        )
        model.compile(momentum(), "mse")
        optimizer, losses = model.optimizer, []
        if strategy is None:
            cuts = [slice(at, at + 10) for at in range(0, 31, 10)] * 2
            losses = [float(model.train_on_batch(x[cut], y[cut])) for cut in cuts]
        else:
            data = strategy.prepare(_in_order(x, y))
            step = strategy.train_step(model, keras.losses.MeanSquaredError(), optimizer)
            for _ in range(2):
                losses += [float(step(*batch)) for batch in data]
    del losses[1:]  # Keras's own is a running mean
    told = figures(model, losses=losses)
    del told["next of the framework"]  # a loader of torch's draws, arrays do not
    return told


def _in_order(x: Any, y: Any) -> Any:
    if TF:
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
    import torch

    pairs = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return torch.utils.data.DataLoader(pairs, batch_size=10)
