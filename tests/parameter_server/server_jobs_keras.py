"""What ranks of the Keras jobs run, under dream.launch. Keras comes with the backend that the
job's framework names."""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
from server_job_marks import Uneven

import dream

EPOCHS, BATCH, SAMPLES = 5, 16, 52  # 20 steps; the last batch has 4 samples


def data() -> tuple[Any, Any]:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(SAMPLES, 8)).astype("float32")
    x *= draw.uniform(0.5, 2.0, size=(SAMPLES, 1)).astype("float32")
    return x, np.abs(x[:, :4]).argmax(1)


def net() -> Any:
    """Other weights on each rank: rank 0's are to start."""
    keras.utils.set_random_seed(int(os.environ.get("RANK", "0")))
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "tanh", kernel_constraint=keras.constraints.MaxNorm(1.5)),
            keras.layers.Dense(4),
        ]
    )


def optimizer_of(name: str, global_norm: bool = True) -> Any:
    clip = {"global_clipnorm": 0.7} if global_norm else {"clipnorm": 0.5}
    if name == "adamw":
        made = keras.optimizers.AdamW(0.02, weight_decay=0.01, **clip)
        made.exclude_from_weight_decay(var_names=["bias"])
        return made
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.7)
    return keras.optimizers.SGD(rate, momentum=0.9, **clip)


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def told(strategy: Any, name: str) -> Any:
    return strategy.staleness() if name == "parameter_server" else None


def by_path(model: Any) -> dict[str, Any]:
    """Without the model's own, numbered name."""
    return {v.path.partition("/")[2]: np.asarray(v) for v in model.trainable_variables}


def fitted(
    name: str, options: dict[str, Any], optimizer: str, global_norm: bool = True
) -> dict[str, Any]:
    """`fit` as it stands, twice, with validation."""
    x, y = data()
    with dream.strategy(name, seed=0, **options) as strategy:
        model = net()
        made = optimizer_of(optimizer, global_norm)
        model.compile(made, loss(), metrics=["accuracy"])
        changing = [keras.callbacks.LearningRateScheduler(lambda _, rate: rate * 0.8)]
        first = model.fit(
            x, y, batch_size=BATCH, epochs=EPOCHS - 2, verbose=0,
            callbacks=changing if optimizer == "adamw" else None,
        )  # fmt: skip
        second = model.fit(
            x, y, batch_size=BATCH, initial_epoch=EPOCHS - 2, epochs=EPOCHS, verbose=0,
            validation_data=(x, y),
        )  # fmt: skip
        figures = model.evaluate(x, y, verbose=0, return_dict=True)
        strategy.full_state(model)
    return {
        "parameters": by_path(model),
        "state": {v.name: np.asarray(v) for v in made.variables},
        "history": {**first.history, **second.history},
        "figures": figures,
        "told": told(strategy, name),
    }


def explicit(name: str, options: dict[str, Any], optimizer: str, norm: bool) -> dict[str, Any]:
    """`train_step` to its end."""
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(data()).shuffle(64, seed=3).batch(BATCH)
    with dream.strategy(name, seed=0, **options) as strategy:
        model, made = net(), optimizer_of(optimizer, norm)
        batches = strategy.prepare(dataset)
        step = strategy.train_step(model, loss(), made)
        losses = [float(step(*batch)) for _ in range(EPOCHS) for batch in batches]
        right = strategy.evaluate(model, dataset, {"right": _right})["right"]
        strategy.full_state(model)
    return {
        "parameters": by_path(model),
        "losses": losses,
        "right": right,
        "told": told(strategy, name),
    }


class Table(keras.utils.PyDataset):
    """The data in batches, which counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = data()
        self.begun = self.ended = 0

    @property
    def num_batches(self) -> int:
        return -(-SAMPLES // BATCH)

    def __getitem__(self, index: int) -> Any:
        at = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[at], self.y[at]

    def on_epoch_begin(self) -> None:
        self.begun += 1

    def on_epoch_end(self) -> None:
        self.ended += 1


def tables(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """`fit` on a PyDataset, shuffled."""
    with dream.strategy(name, seed=0, **options) as strategy:
        model, table = net(), Table()
        model.compile(optimizer_of("sgd"), loss())
        model.fit(table, epochs=2, verbose=0)
        strategy.full_state(model)
    return {"parameters": by_path(model), "passes": (table.begun, table.ended)}


def _right(prediction: Any, target: Any) -> Any:
    return keras.metrics.sparse_categorical_accuracy(target, prediction)


class Marked(keras.callbacks.Callback):
    def __init__(self, marks: Uneven) -> None:
        super().__init__()
        self._marks = marks

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._marks.begin_batch()


def uneven(folder: str, staleness: int | None, far: int) -> Any:
    """Rank 1 holds its first batch until rank 0 has so many."""
    x, y = data()
    with dream.strategy("parameter_server", staleness=staleness) as strategy:
        model = net()
        model.compile(optimizer_of("sgd"), loss())
        marked = Marked(Uneven(folder, strategy.topology.rank, far))
        model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[marked])
        strategy.full_state(model)
    return strategy.staleness(), by_path(model), int(model.optimizer.iterations)


def refused() -> dict[str, str]:
    """The messages of what a worker may not do."""
    x, y = data()
    with dream.strategy("parameter_server", staleness=0) as strategy:
        model, averaged = net(), net()
        made = keras.optimizers.SGD(0.1)
        model.compile(made, loss())
        averaged.compile(keras.optimizers.SGD(0.1, use_ema=True), loss())
        variables = model.trainable_variables
        return {
            "loop": _said(lambda: made.apply([v.value for v in variables], variables)),
            "batch": _said(lambda: model.train_on_batch(x[:4], y[:4])),
            "steps": _said(lambda: model.fit(x, y, steps_per_epoch=3, verbose=0)),
            "communicator": _said(lambda: strategy.communicator.barrier()),
            "ema": _said(lambda: averaged.fit(x, y, verbose=0)),
            "loaded": _said(lambda: _loads(model, x, y)),
        }


def _loads(model: Any, x: Any, y: Any) -> None:
    """Weights are set between two fits."""
    model.fit(x, y, verbose=0)
    model.set_weights([w * 0 for w in model.get_weights()])
    model.fit(x, y, verbose=0)


def _said(act: Any) -> str:
    try:
        act()
    except dream.DreamError as error:
        return str(error)
    return ""


def shuffled() -> str:
    """The message of what a worker may not do: it shuffles by a seed of its own."""
    import tensorflow as tf

    with dream.strategy("parameter_server", staleness=0):
        model = net()
        model.compile(keras.optimizers.SGD(0.1), loss())
        dataset = tf.data.Dataset.from_tensor_slices(data()).shuffle(64).batch(BATCH)
        return _said(lambda: model.fit(dataset, verbose=0))


def digits(name: str, options: dict[str, Any], seed: int) -> float:
    """Accuracy on the digits' test part."""
    from dream.tools.compare import tasks

    task = tasks.find("digits-mlp")
    held, weights = task.load(), tasks.first_weights(task, seed)
    with dream.strategy(name, seed=seed, **options):
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
        )
        model.set_weights([np.asarray(value) for value in weights.values()])
        model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss(), metrics=["accuracy"])
        model.fit(held.x, held.y, batch_size=64, epochs=20, verbose=0)
        figures = model.evaluate(held.x_test, held.y_test, verbose=0, return_dict=True)
    return float(figures["accuracy"])
