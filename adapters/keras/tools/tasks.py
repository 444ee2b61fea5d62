"""The embedded tasks of `dream compare` as a Keras user writes and trains them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, final

import keras
import numpy as np

import dream
from dream.adapters.keras.hooks import replaced
from dream.strategies import spec as specs
from dream.tools.compare import tasks
from dream.tools.compare.meter import Learned, Meter
from dream.tools.compare.settings import TaskJob
from dream.tools.compare.tasks import MOMENTUM, EmbeddedTask, Weights

_KINDS = {"gamma": "scale", "embeddings": "table", "beta": "bias"}
"""Keras's name of a weight -> the task's, where they differ."""


class PositionEmbedding(keras.layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Adds a learned vector to every place."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, x: Any) -> Any:
        return x + self.table


class Attention(keras.layers.Layer):  # type: ignore[misc]
    """Scaled dot products of several heads; every place sees those before it."""

    def call(self, query: Any, key: Any, value: Any) -> Any:
        size = keras.ops.shape(query)
        heads = [
            keras.ops.reshape(
                x, (size[0], size[1], tasks.TEXT_HEADS, tasks.TEXT_WIDTH // tasks.TEXT_HEADS)
            )
            for x in (query, key, value)
        ]
        seen = keras.ops.dot_product_attention(*heads, is_causal=True)
        return keras.ops.reshape(seen, (size[0], size[1], tasks.TEXT_WIDTH))


def build(task: EmbeddedTask, weights: Weights) -> Any:
    """Return the task's network with its first weights."""
    network = keras.Model(*_NETWORKS[task.name]())
    for (layer, name), variable in _named(network).items():
        variable.assign(weights[f"{layer}.{name}"])
    return network


def optimizer_of(task: EmbeddedTask) -> Any:
    return keras.optimizers.SGD(task.learning_rate, momentum=MOMENTUM)


def loss_of(task: EmbeddedTask) -> Any:
    if task.loss == "squares":
        return keras.losses.MeanSquaredError()
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def explained(squared_error: float, y: Any) -> float:
    """Return the share of the variance that is explained."""
    return 1.0 - squared_error / float(np.var(y, dtype=np.float64))


def parameters(network: Any) -> Weights:
    return {
        f"{layer}.{name}": np.asarray(keras.ops.convert_to_numpy(variable)).copy()
        for (layer, name), variable in _named(network).items()
    }


def _named(network: Any) -> dict[tuple[str, str], Any]:
    return {
        (layer.name, _KINDS.get(variable.name, variable.name)): variable
        for layer in network.layers
        for variable in layer.trainable_variables
    }


def _mlp(inputs: int, hidden: int, outputs: int) -> tuple[Any, Any]:
    x = start = keras.Input((inputs,))
    x = keras.layers.Dense(hidden, activation="relu", name="hidden")(x)
    return start, keras.layers.Dense(outputs, name="output")(x)


def _cnn() -> tuple[Any, Any]:
    x = start = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(16, 3, activation="relu", name="first")(x)
    x = keras.layers.Conv2D(32, 3, activation="relu", name="second")(x)
    x = keras.layers.Flatten()(x)
    return start, keras.layers.Dense(10, name="output")(x)


def _transformer() -> tuple[Any, Any]:
    x = start = keras.Input((tasks.TEXT_LENGTH,), dtype="int32")
    x = keras.layers.Embedding(len(tasks.LETTERS), tasks.TEXT_WIDTH, name="letters")(x)
    x = PositionEmbedding(name="places")(x)
    y = _normal("before_attention")(x)
    parts = [
        keras.layers.Dense(tasks.TEXT_WIDTH, name=name)(y) for name in ("query", "key", "value")
    ]
    x = x + keras.layers.Dense(tasks.TEXT_WIDTH, name="mixed")(Attention()(*parts))
    y = keras.layers.Dense(tasks.TEXT_INNER, activation="gelu", name="inner")(
        _normal("before_inner")(x)
    )
    x = x + keras.layers.Dense(tasks.TEXT_WIDTH, name="outer")(y)
    x = _normal("before_output")(x)
    return start, keras.layers.Dense(len(tasks.LETTERS), name="output")(x)


def _normal(name: str) -> Any:
    return keras.layers.LayerNormalization(epsilon=1e-5, name=name)


_NETWORKS: Mapping[str, Callable[[], tuple[Any, Any]]] = {
    "digits-mlp": lambda: _mlp(64, 32, 10),
    "digits-cnn": _cnn,
    "transformer": _transformer,
    "regression": lambda: _mlp(10, 32, 1),
}


@contextmanager
def _kept() -> Iterator[list[Any]]:
    """What Keras's own fit is given meanwhile, so that reading it can be timed afterwards."""
    given: list[Any] = []
    original = keras.Model.fit

    @wraps(original)
    def fit(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        given.append(x)
        return original(self, x, *args, **kwargs)

    with replaced(keras.Model, "fit", fit):
        yield given


def train(job: TaskJob, meter: Meter) -> Learned:
    """Train and test, under the strategy that the command line names."""
    task = tasks.find(job.task)
    data = task.load()
    with dream.strategy(seed=job.seed) as strategy:
        model = build(task, tasks.first_weights(task, job.seed))
        model.compile(
            optimizer_of(task),
            loss_of(task),
            metrics=None if task.loss == "squares" else ["accuracy"],
        )
        with _kept() as given:
            model.fit(
                data.x, data.y, batch_size=job.batch_size, epochs=job.epochs, verbose=0,
                validation_data=(data.x_test, data.y_test), callbacks=[_Clock(job, meter, task)],
            )  # fmt: skip
        served = specs.find(strategy.name).update == "asynchronous"
        staleness = strategy.staleness() if served else None
    learned = parameters(model)
    return Learned(
        learned,
        strategy.topology,
        None if served else strategy.communicator,
        batches=(lambda: _batches(given[0])) if given else None,
        gradient=keras.ops.zeros(sum(value.size for value in learned.values())),
        staleness=staleness,
    )


def _batches(given: Any) -> Iterable[Any]:
    on_torch = keras.backend.backend() == "torch"
    elements: Iterable[Any] = given.get_torch_dataloader() if on_torch else given.get_tf_dataset()
    return elements


@final
class _Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells the meter of a fit.

    async_safe: it reads no logs in mid-epoch, so Keras need not wait for them, and calls it in
        threads; a worker that is to be slow sleeps in line with its steps.
    """

    def __init__(self, job: TaskJob, meter: Meter, task: EmbeddedTask) -> None:
        super().__init__()
        self._job, self._meter, self._task = job, meter, task
        self.async_safe = meter.slow <= 1
        self._data = task.load()
        self._testing = ExitStack()

    def on_train_batch_begin(self, *_: Any, **__: Any) -> None:
        self._meter.begin()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self._meter.step(self._job.batch_size)

    def on_test_begin(self, *_: Any, **__: Any) -> None:
        self._testing.enter_context(self._meter.aside())

    def on_test_end(self, *_: Any, **__: Any) -> None:
        self._testing.close()

    def on_epoch_end(self, _: int, logs: Any) -> None:
        # a worker that was dealt no batch has no loss
        self._meter.epoch(float(logs.get("loss", "nan")), self._task.samples)
        if self._task.loss == "squares":
            score = explained(float(logs["val_loss"]), self._data.y_test)
        else:
            score = float(logs["val_accuracy"])
        self._meter.scores.append(score)
