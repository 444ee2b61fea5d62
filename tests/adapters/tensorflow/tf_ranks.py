"""What the ranks of several processes do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tf_cases import dense, evaluated, momentum, numbers, told, trained, training_cases, weighed
from tf_cases import unweighed as gradient_tape

import dream
from dream import Communicator
from dream._strategy import Strategy

REDUCTIONS = ("grpc", "horovod")
OFTEN = ("momentum", "clipped", "accumulated", "counted", "embedding")
"""Trained over the first of them in `make test`; AdamW is in the contract, over shared memory."""


def run(full: bool) -> dict[str, Any]:
    """Both reductions in one process, one block after the other. full: all trainings, and the
    second one, too, with what is no matter of what adds up."""
    results: dict[str, Any] = {}
    for reduction in REDUCTIONS:
        rest = full or reduction == REDUCTIONS[0]
        names = () if full else OFTEN if rest else ("momentum",)
        with dream.strategy("mirrored", reduction=reduction) as strategy:
            results[reduction] = {
                **dict(tensors(strategy.communicator)),
                **traced(strategy.communicator),
                "training": training_cases(strategy, names),
                **(the_rest(strategy) if rest else {}),
            }
    with dream.strategy("multi_worker_mirrored", reduction="grpc") as strategy:
        results["again"] = strategy.communicator.all_reduce(np.ones(2), "sum")
    return results


def the_rest(strategy: Strategy) -> dict[str, Any]:
    return {
        "evaluated": evaluated(strategy),
        "weighed": told(lambda: weighed(strategy, strategy.topology.world_size)),
        **refused(strategy),
    }


def tensors(c: Communicator) -> Iterator[tuple[str, Any]]:
    """Eager collectives of tensors, variables and arrays."""
    together = [
        tf.Variable([1.0 + c.rank]), np.float32(c.rank), np.full((2, 1), c.rank, np.int64),
        tf.ones([0, 3]), tf.constant(c.rank, tf.bfloat16),
    ]  # fmt: skip
    summed = c.all_reduce(together, "sum")
    yield "list", [plain(x) for x in summed]
    yield "kinds", [type(x).__name__ for x in summed]
    yield "kept", plain(together[0])


def traced(c: Communicator) -> dict[str, Any]:
    """Collectives inside functions: retraced, in a loop, one function in another."""

    @tf.function(reduce_retracing=True)
    def mean(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        return c.all_reduce([x, y], "mean")

    @tf.function
    def twice(x: tf.Tensor) -> tf.Tensor:
        """Its last two calls do not need each other. TensorFlow loses their order as it inlines,
        and at times one rank begins with the other."""
        return c.all_reduce(x + mean(x, x)[0], "max") + mean(x, x)[1]

    @tf.function
    def loop(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(5):
            x = c.all_reduce(x, "sum") / c.world_size + 1.0
        return x

    @tf.function
    def pulled(x: tf.Tensor) -> tf.Tensor:
        """What a loss of all rows, another on each rank, gives this rank's."""
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(c.all_gather(x) ** 3) * (c.rank + 1.0)
        return tape.gradient(loss, x)

    rank = float(c.rank)
    shapes, double = [[2], [3], [4], [2]], tf.constant(rank, tf.float64)
    return {
        "retraced": [plain(mean(tf.fill(s, rank), double)[0]) for s in shapes],
        "nested": [plain(twice(tf.fill([2], rank))) for _ in range(100)][-1],
        "loop": plain(loop(tf.fill([2], rank))),
        "pulled": [
            plain(f(tf.fill([c.rank + 1, 2], rank + 2.0))) for f in (pulled, pulled.python_function)
        ],
    }


def refused(strategy: Strategy) -> dict[str, Any]:
    """What must end in an error of dream's, the same on every rank."""
    rank = strategy.topology.rank
    inputs, targets, _ = numbers()
    other_order = np.roll(np.arange(len(inputs)), rank)
    data = tf.data.Dataset.from_tensor_slices((inputs[other_order], targets)).batch(20)
    singles = tf.data.Dataset.from_tensor_slices(targets)
    summed = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    other = dense(*[keras.layers.Dense(4 + rank, name="odd")])
    return {
        "unweighed": told(lambda: gradient_tape(rank)),
        "other data": told(lambda: list(strategy.prepare(data))),
        "other model": told(lambda: trained(strategy, momentum(), model=other)),
        "sum loss": told(lambda: trained(strategy, momentum(), loss=summed)),
        "single numbers": told(lambda: strategy.prepare(singles)),
        "arrays": told(lambda: strategy.prepare(inputs)),
        "text": told(lambda: strategy.communicator.all_reduce(tf.constant("a"), "sum")),
        "python list": told(lambda: strategy.communicator.all_reduce("ab", "sum")),
        "root": told(lambda: strategy.communicator.broadcast(inputs, 9)),
    }


def plain(x: Any) -> np.ndarray:
    array = np.asarray(x.numpy() if isinstance(x, (tf.Tensor, tf.Variable)) else x)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
