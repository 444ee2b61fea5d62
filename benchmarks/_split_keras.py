"""One rank's part of the benchmark of split Keras models: FILE FAMILY ROUNDS STEPS [CONTENDER].

TensorFlow's own parts, put together by hand, beside dream. With a contender, that one alone is run,
and what is written is the most memory that a rank took for it, in MB.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Any

import dream
from dream import cluster

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from _measure import interleave
from tensorflow.experimental import dtensor

WIDTH, CLASSES = 512, 10
FEW, MANY = 64, 1024
"""Rows of a batch."""
RATE, MOMENTUM = 0.01, 0.9
Step = Callable[[], object]


def network() -> Any:
    """2M parameters in four pairs of layers."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((WIDTH,))
    for number in range(4):
        up = keras.layers.Dense(WIDTH, activation="tanh", name=f"up{number}")(x)
        x = x + keras.layers.Dense(WIDTH, name=f"down{number}")(up)
    return keras.Model(inputs, keras.layers.Dense(CLASSES, name="head")(x))


def judge(prediction: Any, target: Any) -> Any:
    found = keras.losses.sparse_categorical_crossentropy(target, prediction, from_logits=True)
    return keras.ops.mean(found)


def batch(rows: int = FEW) -> tuple[Any, Any]:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(rows, WIDTH)).astype(np.float32)
    return x, draw.integers(0, CLASSES, rows)


def ours(name: str, rows: int = FEW, **options: Any) -> Step:
    """Every rank has its share of the batch at hand; a pipeline's ranks read all of it."""
    with dream.strategy(name, framework="tensorflow", **options) as strategy:
        model = network()
        optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
        model, optimizer = strategy.prepare(model, optimizer)
        step = strategy.train_step(model, judge, optimizer)
        share = next(iter(strategy.prepare(tf.data.Dataset.from_tensors(batch(rows)))))
    return lambda: float(step(*share))


def raw(split: str) -> Step:
    """A Keras model computed by `stateless_call` on DTensor's variables, as its guide does."""
    place = cluster.detect()
    axis = "batch" if split == "sharded" else "model"
    mesh = dtensor.create_distributed_mesh([(axis, place.world_size)], local_devices=["CPU:0"])
    model = network()

    def lies(variable: Any) -> Any:
        specs = [dtensor.UNSHARDED] * len(variable.shape)
        if split == "sharded":
            even = [d for d, size in enumerate(variable.shape) if size % place.world_size == 0]
            specs[max(even, key=lambda d: variable.shape[d])] = axis
        elif "up" in variable.path:
            specs[-1] = axis
        elif "down" in variable.path and len(specs) == 2:
            specs[0] = axis
        return dtensor.Layout(specs, mesh)

    def put(array: Any, layout: Any) -> Any:
        whole = dtensor.copy_to_mesh(tf.constant(array), _whole(mesh, np.ndim(array)))
        return dtensor.relayout(whole, layout)

    variables = [dtensor.DVariable(put(v.numpy(), lies(v))) for v in model.trainable_variables]
    speeds = [dtensor.DVariable(put(np.zeros(v.shape, np.float32), v.layout)) for v in variables]

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            given = [v.value() for v in variables]
            if split == "sharded":
                given = [dtensor.relayout(v, _whole(mesh, v.shape.rank)) for v in given]
            value = judge(model.stateless_call(given, [], x, training=True)[0], y)
        for v, s, g in zip(variables, speeds, tape.gradient(value, variables), strict=True):
            speed = MOMENTUM * s.value() - RATE * g
            s.assign(speed)
            v.assign_add(speed)
        return value

    x, y = batch()

    def call() -> float:
        laid = [
            dtensor.pack([tf.constant(z[place.rank :: place.world_size])], _samples(mesh, z.ndim))
            if split == "sharded"
            else dtensor.copy_to_mesh(tf.constant(z), _whole(mesh, z.ndim))
            for z in (x, y)
        ]
        return float(dtensor.unpack(step(*laid))[0])

    return call


def _whole(mesh: Any, rank: int) -> Any:
    return dtensor.Layout([dtensor.UNSHARDED] * rank, mesh)


def _samples(mesh: Any, rank: int) -> Any:
    return dtensor.Layout(["batch", *[dtensor.UNSHARDED] * (rank - 1)], mesh)


def plain(rows: int = FEW) -> Step:
    """Keras's own step on one device: each rank has the whole model."""
    model = network()
    model.compile(
        keras.optimizers.SGD(RATE, momentum=MOMENTUM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return partial(model.train_on_batch, *batch(rows))


BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "sharded": ("sharded", {}),
    "tensor": ("model_parallel", {"split": "tensor"}),
    "pipeline": ("model_parallel", {"split": "pipeline"}),
    "one_process": ("model_parallel", {"split": "pipeline", "devices": 2}),
    "one_process_many": ("model_parallel", {"split": "pipeline", "devices": 2}),
}


def contenders(family: str) -> dict[str, Callable[[], Step]]:
    """The first is what the others are held against. TensorFlow has no pipeline of its own."""
    name, options = BLOCKS[family]
    rows = MANY if family == "one_process_many" else FEW
    dreamt = {"dream, train_step": partial(ours, name, rows, **options)}
    if options.get("split") == "pipeline":
        alone = partial(plain, rows)
        return {"one device": alone, "one device again": alone, **dreamt}
    by_hand = partial(raw, family)
    return {"raw DTensor": by_hand, "raw DTensor again": by_hand, **dreamt, "one device": plain}


def main(file: str, family: str, rounds: str, steps: str, alone: str = "") -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    name, options = BLOCKS[family]
    with dream.strategy(name, framework="tensorflow", **options) as strategy:
        talk = strategy.communicator  # TensorFlow's cluster is up from here on
    found: object
    if alone:
        found = max(talk.all_gather_object(peak(contenders(family)[alone])))
    else:
        blocks = {
            name: partial(block, make(), talk.barrier, int(steps))
            for name, make in contenders(family).items()
        }
        found = interleave(blocks, rounds=int(rounds), warmup=2)
    if talk.rank == 0:
        Path(file).write_text(json.dumps(found))
    talk.barrier()


def peak(make: Callable[[], Step]) -> float:
    """In MB, by how much four steps have this process grow."""
    before = getrusage(RUSAGE_SELF).ru_maxrss
    step = make()
    for _ in range(4):
        step()
    return (getrusage(RUSAGE_SELF).ru_maxrss - before) / 1024


def block(step: Step, meet: Callable[[], None], steps: int) -> float:
    """Seconds per step, of steps that the ranks start together."""
    gc.collect()
    meet()
    begin = perf_counter()
    for _ in range(steps):
        step()
    return (perf_counter() - begin) / steps


if __name__ == "__main__":
    main(*sys.argv[1:])
