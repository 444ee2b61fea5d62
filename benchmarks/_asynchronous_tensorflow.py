"""Ranks of the TensorFlow part of asynchronous.py: TensorFlow's own ParameterServerStrategy with a
custom loop, and dream's `parameter_server`, on one model and one kind of data."""

from __future__ import annotations

import os
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import dream
from dream import cluster

WIDTH, BATCH, WARM_UP = 64, 64, 20


def net() -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((784,)), keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(10)]
    )


def data() -> Any:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(40 * BATCH, 784)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :10].argmax(1))).batch(BATCH).cache()


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def raw(steps: int) -> float:
    """Rank 0 is the chief, 1 the worker, 2 the server. Updates a second."""
    place = cluster.detect()
    names = ("chief", "worker", "ps")
    endpoints = cluster.exchange_endpoints(place)
    spec = tf.train.ClusterSpec(
        {name: [str(end)] for name, end in zip(names, endpoints, strict=True)}
    )
    if place.rank:
        tf.distribute.Server(spec, names[place.rank], 0, protocol="grpc")
        while cluster.found(place, "raw/done") is None:
            time.sleep(0.2)
        return 0.0
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    rate = _chief(tf.distribute.ParameterServerStrategy(resolver), steps)
    cluster.post(place, "raw/done", b"done")
    return rate


def _chief(strategy: Any, steps: int) -> float:
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model, optimizer = net(), keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    judge = loss()

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = judge(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return value

    @tf.function
    def step(batches: Any) -> Any:
        return strategy.run(replica, args=next(batches))

    batches = iter(coordinator.create_per_worker_dataset(lambda: data().repeat()))
    begin = 0.0
    for count in (WARM_UP, steps):
        begin = time.perf_counter()
        for _ in range(count):
            coordinator.schedule(step, args=(batches,))
        coordinator.join()
    return steps / (time.perf_counter() - begin)


def dreamt(steps: int) -> float:
    """Rank 0 works, rank 1 serves."""
    with dream.strategy("parameter_server") as strategy:
        model = net()
        step = strategy.train_step(model, loss(), keras.optimizers.SGD(0.1, momentum=0.9))
        batches = strategy.prepare(data())
        done, begin = 0, 0.0
        while done < steps + WARM_UP:
            for batch in batches:
                if done == WARM_UP:
                    begin = time.perf_counter()
                step(*batch)
                done += 1
        return (done - WARM_UP) / (time.perf_counter() - begin)
