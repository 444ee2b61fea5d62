"""What a process by itself does: one device, or several logical ones."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tf_cases import evaluated, told, training_cases, weighed

import dream
from dream.adapters.tensorflow import data as dream_data
from dream.adapters.tensorflow import runtime


def one_device() -> dict[str, Any]:
    """The oracle. TensorFlow starts before the block, which is too late for logical devices."""
    tf.constant(1.0)
    results: dict[str, Any] = {"too late": told(lambda: enter("mirrored", devices=2))}
    results["two devices"] = told(lambda: enter("single", devices=2))
    with dream.strategy("single") as strategy:
        c = strategy.communicator
        return results | {
            "training": training_cases(strategy),
            "evaluated": evaluated(strategy),
            "weighed": {n: told(lambda n=n: weighed(strategy, n)) for n in (2, 3)},
            "reduced": [c.all_reduce(np.arange(3.0)), c.all_reduce([tf.Variable(1.0)], "max")[0]],
            "mean of ints": told(lambda: c.all_reduce(np.arange(3))),
        }


OFTEN = ("momentum", "counted", "embedding")


def mirrored(devices: int, early: bool, full: bool) -> dict[str, Any]:
    """MirroredStrategy. early: under `--strategy`, TensorFlow may start before the block. full: all
    trainings."""
    if early:
        tf.constant(1.0)
    with dream.strategy("mirrored", devices=devices) as strategy:
        return {
            "adding": type(runtime._started.mirrored.extended._cross_device_ops).__name__,
            "replicas": strategy.topology.num_replicas,
            "training": training_cases(strategy, () if full else OFTEN),
            "evaluated": evaluated(strategy),
        }


def refused() -> dict[str, Any]:
    """What three devices of one process cannot; `--strategy` would put its own in their place."""
    results: dict[str, Any] = {
        ops: told(lambda ops=ops: enter("mirrored", devices=3, cross_device_ops=ops))
        for ops in ("nccl", "hierarchical_copy")
    }
    with dream.strategy("mirrored", devices=3) as strategy:
        results["weighed"] = told(lambda: weighed(strategy, 3))
        results["gathered"] = told(lambda: gathered(strategy.communicator))
    results["added otherwise"] = told(
        lambda: enter("mirrored", devices=3, cross_device_ops="one_device")
    )
    results["one device"] = told(lambda: enter("mirrored", devices=1, cross_device_ops="nccl"))
    results["other devices"] = told(lambda: enter("mirrored", devices=2))
    with dream.strategy("single") as strategy:
        results["then one"] = strategy.topology.num_replicas
    return results


def gathered(ranks: Any) -> None:
    """Fit a model whose loss is of what all replicas gave."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", lambda y, p: keras.ops.mean(y) - keras.ops.mean(ranks.all_gather(p)))
    model.fit(np.ones((6, 2), np.float32), np.ones((6, 1), np.float32), verbose=0)


def enter(name: str, **options: Any) -> None:
    with dream.strategy(name, **options):
        pass


def cold_ranks() -> Any:
    """Ranks that start TensorFlow before the block."""
    tf.constant(1.0)
    return told(lambda: enter("mirrored", reduction="grpc")), told(
        lambda: enter("local_sgd", devices=2)
    )


def batches_of_their_own() -> Any:
    """Ranks of two devices each, which give train_on_batch other batches."""
    with dream.strategy() as strategy:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        rows = 4 + strategy.topology.rank
        x, y = np.ones((rows, 2), np.float32), np.ones((rows, 1), np.float32)
        return strategy.topology.num_replicas, told(lambda: model.train_on_batch(x, y))


def early_ranks() -> Any:
    """The same under `--strategy`, which has set TensorFlow up by then."""
    one = tf.constant([1.0])
    with dream.strategy() as strategy:
        return strategy.name, np.asarray(strategy.communicator.all_reduce(one, "sum"))


def logged(folder: str) -> None:
    """A writer that stays open as the rank ends."""
    tf.summary.create_file_writer(folder).set_as_default()
    tf.summary.text("logged", "at the end", step=0)


def digests() -> dict[str, list[bool]]:
    """Whether the digests of two batches are alike: of the same numbers, and of others."""
    made = {
        "float32": [1.0, 2.0, 3.0],
        "bfloat16": [1.0, 2.0, 3.0],
        "string": ["a word", "another", "a third one, which is longer than a few bytes"],
    }

    def digest(values: list[Any], dtype: str) -> int:
        first = dream_data._digest({"x": tf.constant(values, dtype)}, 0)
        return dream_data._digest({"x": tf.constant([[values[0]]] * 3, dtype)}, first)

    return {
        dtype: [digest(values, dtype) == digest(other, dtype) for other in (values, values[::-1])]
        for dtype, values in made.items()
    }
