"""The embedded digits task by explicit steps, beside ranks that run a loop of torch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

import dream
from dream.compare import digits as task
from dream.compare.meter import Learned, Meter
from dream.compare.settings import Job


def digits(job: Job, meter: Meter) -> Learned:
    """Train and test, under the strategy that the command line names."""
    data = task.load()
    with dream.strategy(seed=job.seed) as strategy:
        model = _model(job.seed)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.SGD(task.LEARNING_RATE, momentum=task.MOMENTUM)
        step = strategy.train_step(model, loss, optimizer)
        for epoch in range(job.epochs):
            total = 0.0
            for x, y in _batches(strategy, data, job.batch_size, epoch):
                if len(y):  # the mean over no sample is nan
                    total += float(loss(y, model(x))) * len(y)
                step(x, y)
                meter.step(job.batch_size)
            everyone = strategy.communicator.all_reduce(tf.constant(total, tf.float64), "sum")
            meter.epoch(float(everyone) / len(data.x), len(data.x))
        right = model(data.x_test).numpy().argmax(1) == data.y_test
    return Learned(
        _parameters(model), float(right.mean()), strategy.topology, strategy.communicator.reduction
    )


def _model(seed: int) -> Any:
    model = keras.Sequential(
        [
            keras.Input((task.LAYERS["hidden"][0],)),
            keras.layers.Dense(task.LAYERS["hidden"][1], activation="relu", name="hidden"),
            keras.layers.Dense(task.LAYERS["output"][1], name="output"),
        ]
    )
    first = task.first_weights(seed)
    for layer in model.layers:
        layer.set_weights([first[f"{layer.name}.kernel"], first[f"{layer.name}.bias"]])
    return model


def _batches(strategy: Any, data: task.Digits, size: int, epoch: int) -> Iterator[Any]:
    """This rank's shares, in the order of torch's shuffled loaders."""
    order = strategy.order(len(data.x), epoch)
    arrays = (data.x[order], data.y[order])
    return iter(strategy.prepare(tf.data.Dataset.from_tensor_slices(arrays).batch(size)))


def _parameters(model: Any) -> task.Weights:
    return {
        f"{layer.name}.{name}": value
        for layer in model.layers
        for name, value in zip(("kernel", "bias"), layer.get_weights(), strict=True)
    }
