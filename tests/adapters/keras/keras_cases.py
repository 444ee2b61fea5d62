"""What a Keras user writes, run by plain Keras and inside the block. Each case is a function of
the block's context manager and gives figures that must be the same either way."""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops

import dream

Figures = dict[str, Any]
Block = AbstractContextManager[Any]
Case = Callable[[Block], Figures]
BATCH = 16
CASES: dict[str, Case] = {}
TF = keras.backend.backend() == "tensorflow"


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def run(strategy: str, options: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """On every rank: (plain figures, figures in the block) of each case, or what it raised. Plain
    Keras is run by rank 0 alone."""
    found = {}
    for name in names:
        plain = CASES[name](nullcontext()) if os.environ.get("RANK", "0") == "0" else None
        try:
            found[name] = plain, CASES[name](dream.strategy(strategy, **options))
        except Exception:
            found[name] = plain, traceback.format_exc()
    return found


def arrays(samples: int = 49) -> tuple[np.ndarray, np.ndarray]:
    """49 in batches of 16: the last batch has one sample, fewer than there are replicas."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(samples, 8)).astype(np.float32)
    return x, np.abs(x[:, :4]).argmax(axis=1)


def net(*before: Any) -> Any:
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [keras.Input((8,)), *before, layers.Dense(16, activation="tanh"), layers.Dense(4)]
    )


def loss(**options: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def compiled(model: Any, **options: Any) -> Any:
    model.compile(
        **{"optimizer": keras.optimizers.SGD(0.1, momentum=0.9), "loss": loss(), **options}
    )
    return model


def fitted(model: Any, *data: Any, **options: Any) -> Figures:
    options = {"epochs": 3, "batch_size": BATCH, "shuffle": False, "verbose": 0, **options}
    history = model.fit(*(data or arrays()), **options)
    return {"weights": model.get_weights(), "logs": history.history}


class OwnStep(keras.Model):
    """A model that overrides train_step, returns a figure of its own, and is built late."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(16, activation="tanh")
        self.second = layers.Dense(4)
        self.size = keras.metrics.Mean(name="size")

    def call(self, x: Any) -> Any:
        return self.second(self.first(x))

    def train_step(self, data: Any) -> Any:
        x, y = data
        value = self._tape_step(x, y) if TF else self._torch_step(x, y)
        self.size.update_state(ops.sum(ops.square(x), axis=-1))
        return {"loss": value, "size": self.size.result()}

    def _tape_step(self, x: Any, y: Any) -> Any:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(value, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return value

    def _torch_step(self, x: Any, y: Any) -> Any:
        import torch

        self.zero_grad()
        value = self.compute_loss(y=y, y_pred=self(x, training=True))
        value.backward()
        variables = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in variables], variables)
        return value.detach()


@case
def own_train_step(block: Block) -> Figures:
    keras.utils.set_random_seed(3)
    with block:
        model = compiled(OwnStep())
        heard = Heard()
        figures = fitted(model, callbacks=[heard])
    return {"weights": figures["weights"], "batches": heard.batches}


class Heard(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append({name: float(value) for name, value in logs.items()})


@case
def metrics_of_many_kinds(block: Block) -> Figures:
    x, y = arrays()
    with block:
        model = compiled(
            keras.Sequential([keras.Input((8,)), layers.Dense(1, "sigmoid", name="one")]),
            loss="binary_crossentropy",
            metrics=["accuracy", "AUC", "Precision", "Recall", keras.metrics.R2Score()],
            weighted_metrics=["mse"],
        )
        model.set_weights([np.linspace(-1, 1, 8).reshape(8, 1), np.zeros(1)])
        weights = np.linspace(0.0, 2.0, len(y)).astype(np.float32)
        return fitted(model, x, (y > 1).astype(np.float32), sample_weight=weights, epochs=2)


@case
def validation_split(block: Block) -> Figures:
    with block:
        return fitted(compiled(net(), metrics=["accuracy"]), validation_split=0.3)


@case
def steps_per_epoch(block: Block) -> Figures:
    """An epoch of two steps: passes over the data and epochs fall apart."""
    with block:
        model = compiled(net())
        return fitted(model, *arrays(64), steps_per_epoch=2, epochs=4)


@case
def eagerly(block: Block) -> Figures:
    with block:
        return fitted(compiled(net(), run_eagerly=True, metrics=["accuracy"]), epochs=1)


@case
def several_steps_an_execution(block: Block) -> Figures:
    """Where it cannot be, it is refused."""
    with block as strategy:
        pooled = strategy is not None and strategy.topology.world_size == 1
        if pooled:
            with contextlib.suppress(dream.Unsupported):
                compiled(net(), steps_per_execution=2)
                raise AssertionError("steps_per_execution=2 was not refused")
        return fitted(compiled(net(), steps_per_execution=2 if TF and not pooled else 1))


@case
def scaled_losses(block: Block) -> Figures:
    """A loss scale and clipping: both see the global gradient."""
    with block:
        inner = keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.05)
        scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0)
        return fitted(compiled(net(), optimizer=scaled))


@case
def a_schedule_by_name_of_optimizer(block: Block) -> Figures:
    with block:
        model = net()
        model.compile("adam", loss())
    return fitted(model)


@case
def frozen_layers_and_penalties(block: Block) -> Figures:
    with block:
        model = net(layers.Dense(8, kernel_regularizer="l2", activity_regularizer="l2"))
        model.layers[1].trainable = False
        return fitted(compiled(model))


@case
def batch_by_batch(block: Block) -> Figures:
    """train_on_batch and test_on_batch with the whole batch on every rank."""
    x, y = arrays(48)
    with block:
        model = compiled(net(), metrics=["accuracy"])
        said = [
            model.train_on_batch(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, 48, BATCH)
        ]
        said.append(model.test_on_batch(x, y))
    return {"weights": model.get_weights(), "logs": {"said": np.array(said)}}


@case
def files_and_restoring(block: Block) -> Figures:
    """Training that goes on where a backup left it."""
    with tempfile.TemporaryDirectory() as folder, block:

        def backup() -> Any:
            return keras.callbacks.BackupAndRestore(Path(folder, "b"), delete_checkpoint=False)

        model = compiled(net(), optimizer=keras.optimizers.Adam(0.01))
        fitted(model, epochs=2, callbacks=[backup()])
        again = compiled(net(), optimizer=keras.optimizers.Adam(0.01))
        return {"weights": fitted(again, epochs=4, callbacks=[backup()])["weights"]}


class Pairs(keras.utils.PyDataset):
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self.x, self.y = x, y

    @property
    def num_batches(self) -> int:
        return -(-len(self.x) // BATCH)

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


@case
def python_dataset(block: Block) -> Figures:
    with block:
        data = Pairs(*arrays())
        return fitted(compiled(net()), data, batch_size=None, validation_data=Pairs(*arrays(17)))


@case
def python_generator(block: Block) -> Figures:
    """Batches of several sizes, without an end."""

    def batches() -> Iterator[Any]:
        x, y = arrays(61)
        while True:
            for start, stop in ((0, 16), (16, 21), (21, 22), (22, 61)):
                yield x[start:stop], y[start:stop]

    with block:
        model = compiled(net())
        return fitted(model, batches(), batch_size=None, shuffle=True, steps_per_epoch=4)


@case
def tensorflow_dataset(block: Block) -> Figures:
    import tensorflow as tf

    with block:
        model = compiled(net(), metrics=["accuracy"])
        data = tf.data.Dataset.from_tensor_slices(arrays()).batch(BATCH)
        figures = fitted(model, data, batch_size=None)
        return {**figures, "predicted": model.predict(data.map(lambda x, _: x), verbose=0)}


@case
def nested_inputs_and_callable_loss(block: Block) -> Figures:
    """A dict of inputs, and a loss that is itself a mean."""
    x, y = arrays()

    def mean_loss(target: Any, predicted: Any) -> Any:
        return ops.mean(keras.losses.sparse_categorical_crossentropy(target, predicted, True))

    keras.utils.set_random_seed(3)
    with block:
        inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((5,), name="b")}
        joined = layers.Concatenate()([inputs["a"], inputs["b"]])
        model = compiled(keras.Model(inputs, layers.Dense(4)(joined)), loss=mean_loss)
        figures = fitted(model, {"a": x[:, :3], "b": x[:, 3:]}, y)
        said = model.predict({"a": x[:, :3], "b": x[:, 3:]}, batch_size=BATCH, verbose=0)
    return {**figures, "predicted": said}
