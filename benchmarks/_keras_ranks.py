"""One rank's part of Keras's `fit` across processes: FILE ROUNDS STEPS MODEL BESIDE."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from _keras_trainer import BATCH, MODELS, Layers, compiled
from _measure import Times, interleave

import dream

Fit = Callable[[], object]


class Horovod(keras.Sequential):
    """Keras 3's own step with Horovod's tape: horovod.keras itself does not reduce on Keras 3."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(x, y, predictions)
        gradients = tape.gradient(loss, [v.value for v in self.trainable_variables])
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, predictions)


def raw(layers: Callable[[], Layers], x: Any, y: Any) -> Fit:
    """On this rank's half of the samples."""
    hvd.init()
    model = compiled(layers, Horovod)
    mine = slice(hvd.rank(), None, hvd.size())
    return partial(model.fit, x[mine], y[mine], batch_size=BATCH // hvd.size(), verbose=0)


def custom_loop(strategy: Any, layers: Callable[[], Layers], x: Any, y: Any) -> Fit:
    """TensorFlow's guide for MultiWorkerMirroredStrategy: a loop around a tape, whose function has
    one step. Each rank reads its half."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((784,)), *layers()])
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
        right = keras.metrics.SparseCategoricalAccuracy()
    judge = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    mine = slice(hvd.rank(), None, hvd.size())
    rows = tf.data.Dataset.from_tensor_slices((x[mine], y[mine])).shuffle(len(x))
    batches = rows.batch(BATCH // hvd.size()).prefetch(tf.data.AUTOTUNE)

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = judge(y, predictions) / BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        right.update_state(y, predictions)
        return loss

    @tf.function
    def step(batch: Any) -> Any:
        found = strategy.run(replica, args=batch)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, found, axis=None)

    def epoch() -> None:
        for batch in batches:
            step(batch)

    return epoch


def dreamt(reduction: str, layers: Callable[[], Layers], x: Any, y: Any) -> Fit:
    with dream.strategy("mirrored", framework="tensorflow", reduction=reduction):
        model = compiled(layers)
    return partial(model.fit, x, y, batch_size=BATCH, verbose=0)


def dream_loop(layers: Callable[[], Layers], x: Any, y: Any) -> Fit:
    """The same loop by `strategy.train_step`. Its data holds all samples, of which each rank is
    dealt its share."""
    judge = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    right = keras.metrics.SparseCategoricalAccuracy()

    def loss(predictions: Any, y: Any) -> Any:
        right.update_state(y, predictions)
        return judge(y, predictions)

    with dream.strategy("mirrored", framework="tensorflow", reduction="shared_memory") as strategy:
        model = keras.Sequential([keras.Input((784,)), *layers()])
        step = strategy.train_step(model, loss, keras.optimizers.SGD(0.01, momentum=0.9))
        rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=0)
        batches = strategy.prepare(rows.batch(BATCH).prefetch(tf.data.AUTOTUNE))

    def epoch() -> None:
        for batch in batches:
            step(*batch)

    return epoch


def beside_horovod() -> dict[str, Callable[..., Fit]]:
    return {
        "raw Horovod": raw,
        "raw Horovod again": raw,
        "dream in shared memory": partial(dreamt, "shared_memory"),
        "dream on the ring": partial(dreamt, "horovod"),
    }


def beside_multi_worker() -> dict[str, Callable[..., Fit]]:
    """In processes of their own, whose runtime is TensorFlow's cluster from the first operation."""
    hvd.init()
    by_hand = partial(custom_loop, tf.distribute.MultiWorkerMirroredStrategy())
    return {
        "raw MultiWorkerMirrored, own loop": by_hand,
        "raw again": by_hand,
        "dream, train_step": dream_loop,
        "dream, fit": partial(dreamt, "shared_memory"),
    }


def main(file: str, rounds: str, steps: str, model: str, beside: str) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    contenders = {"horovod": beside_horovod, "multi_worker": beside_multi_worker}[beside]()
    draw = np.random.default_rng(0)
    count = int(steps) * BATCH
    x = draw.standard_normal((count, 784), dtype=np.float32)
    y = draw.integers(0, 10, count)
    tables: dict[str, Times] = {}
    for name, layers in MODELS.items():
        if model in name:
            fits = {who: make(layers, x, y) for who, make in contenders.items()}
            blocks = {who: partial(epoch, fit, int(steps)) for who, fit in fits.items()}
            tables[f"Keras on two ranks, beside {beside}, {name}"] = interleave(
                blocks, rounds=int(rounds), warmup=2
            )
    if hvd.rank() == 0:
        Path(file).write_text(json.dumps(tables))


def epoch(fit: Fit, steps: int) -> float:
    """Seconds a step of one epoch, which the ranks start together."""
    gc.collect()
    hvd.allreduce(tf.zeros(1), name="together")
    begin = perf_counter()
    fit()
    return (perf_counter() - begin) / steps


if __name__ == "__main__":
    main(*sys.argv[1:])
