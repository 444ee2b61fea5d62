"""A script of TensorFlow's own parameter servers, started task by task.

Usage: coordinated_script.py MODE FOLDER, MODE one of train, worker, server: which other task the
chief kills in the midst of training.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import dream

MODE, FOLDER = sys.argv[1], Path(sys.argv[2])
STEPS = 60
WEIGHTS = FOLDER / "model.weights.h5"


def own_task() -> str:
    """As `dream run` counts, or as TF_CONFIG says."""
    if "RANK" in os.environ:
        return os.environ["RANK"]
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    return f"{task['type']}{task['index']}"


def kill(*names: str) -> None:
    """Kill the first of these tasks that there is."""
    name = next(n for n in names if (FOLDER / f"pid-{n}").exists())
    os.kill(int((FOLDER / f"pid-{name}").read_text()), signal.SIGKILL)


def model_of_the_job() -> Any:
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])


def arrays() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64")


def right(prediction: Any, target: Any) -> Any:
    return tf.cast(tf.argmax(prediction, 1) == target, tf.float32)


def train(strategy: dream.Strategy) -> None:
    """Each step marks its number, so that it can be told which were done, and how often."""
    model, x, y = model_of_the_job(), *map(tf.constant, arrays())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = strategy.train_step(model, loss, keras.optimizers.SGD(0.5))
    done = tf.Variable(tf.zeros([STEPS], tf.int32))

    def mark(number: Any) -> None:
        done.scatter_add(tf.IndexedSlices(tf.constant([1]), number[None]))

    for number in range(STEPS):
        step(x, y)
        strategy.schedule(mark, args=(tf.constant(number),))
        if number == STEPS // 2 and MODE == "worker":
            kill("1", "worker0")
        if number == STEPS // 2 and MODE == "server":
            kill("2", "ps0")
    strategy.join()
    told = strategy.evaluate(model, [(x, y)], {"right": right})
    counts = done.numpy()
    print(f"each done: {counts.min() >= 1}, again: {counts.sum() - STEPS}, right: {told['right']}")
    model.save_weights(WEIGHTS)


def evaluate(strategy: dream.Strategy) -> None:
    """The evaluator trains nothing: it reads what the chief writes, and says how good that is."""
    model = model_of_the_job()
    for call in (strategy.join, lambda: strategy.train_step(model, None, None), model.fit):
        try:
            call()  # type: ignore[operator]
        except dream.Unsupported as error:
            print(str(error).partition(".")[0])
    while not WEIGHTS.exists():
        time.sleep(0.05)
    model.load_weights(WEIGHTS)
    print("evaluator:", strategy.evaluate(model, [arrays()], {"right": right}))


(FOLDER / f"pid-{own_task()}").write_text(str(os.getpid()))
with dream.strategy("parameter_server", engine="tensorflow") as strategy:
    print(strategy.topology.role)
    (evaluate if strategy.topology.role == "evaluator" else train)(strategy)
