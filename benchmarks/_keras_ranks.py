"""One rank's part of one contender's `fit` across processes: FILE BESIDE WHO MODEL STEPS. Nobody
else's threads are in the process: Horovod's looks for work a thousand times a second."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from _keras_trainer import BATCH, MODELS, Layers, compiled

import dream

Fit = Callable[[], object]
RANK, RANKS = (int(os.environ.get(name, 1)) for name in ("RANK", "WORLD_SIZE"))
WARMUP, EPOCHS = 2, 3


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


def custom_loop(layers: Callable[[], Layers], x: Any, y: Any) -> Fit:
    """TensorFlow's guide for MultiWorkerMirroredStrategy: a loop around a tape, whose function has
    one step. Each rank reads its half."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((784,)), *layers()])
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
        right = keras.metrics.SparseCategoricalAccuracy()
    judge = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    mine = slice(RANK, None, RANKS)
    rows = _rows(x[mine], y[mine]).shuffle(len(x))
    batches = rows.batch(BATCH // RANKS).prefetch(tf.data.AUTOTUNE)

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


def _rows(x: Any, y: Any) -> tf.data.Dataset:
    """Without the thread that tunes: at a pass's end TensorFlow may wait for its next look, for as
    long as the pass took, which would be all that is read here."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices((x, y)).with_options(options)


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
        rows = _rows(x, y).shuffle(len(x), seed=0)
        batches = strategy.prepare(rows.batch(BATCH).prefetch(tf.data.AUTOTUNE))

    def epoch() -> None:
        for batch in batches:
            step(*batch)

    return epoch


def alone(layers: Callable[[], Layers], x: Any, y: Any) -> Fit:
    """On this rank's half of the samples, without a word to the other."""
    mine = slice(RANK, None, RANKS)
    return partial(compiled(layers).fit, x[mine], y[mine], batch_size=BATCH // RANKS, verbose=0)


CONTENDERS: dict[str, dict[str, Callable[..., Fit]]] = {
    "horovod": {
        "raw Horovod": raw,
        "raw Horovod again": raw,
        "Keras, nothing reduced": alone,
        "dream in shared memory": partial(dreamt, "shared_memory"),
        "dream on the ring": partial(dreamt, "horovod"),
    },
    "multi_worker": {
        "raw MultiWorkerMirrored, own loop": custom_loop,
        "raw again": custom_loop,
        "dream, train_step": dream_loop,
        "dream, fit": partial(dreamt, "shared_memory"),
    },
}


def main(file: str, beside: str, who: str, model: str, steps: str) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    draw = np.random.default_rng(0)
    count = int(steps) * BATCH
    x = draw.standard_normal((count, 784), dtype=np.float32)
    y = draw.integers(0, 10, count)
    fit = CONTENDERS[beside][who](MODELS[model], x, y)
    for _ in range(WARMUP):
        fit()
    taken = [epoch(fit) / int(steps) for _ in range(EPOCHS)]
    if RANK == 0:
        Path(file).write_text(json.dumps(median(taken)))


def epoch(fit: Fit) -> float:
    """Seconds of one."""
    gc.collect()
    begin = perf_counter()
    fit()
    return perf_counter() - begin


if __name__ == "__main__":
    main(*sys.argv[1:])
