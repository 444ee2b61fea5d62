"""A real training of a Keras model, watched: the process's memory beyond what it had before, and
time. TensorFlow's allocator for CPUs keeps no account, and neither do its collectives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import keras
import numpy as np

import dream
from dream._strategy import Strategy
from dream.adapters.tensorflow.planning.example import Example, real
from dream.plan.asked import Optimizer
from dream.plan.trial import Job, Trial

_WARM = 3


def run(function: Callable[[], Any], job: Job) -> Trial:
    """This rank's part of it."""
    with dream.strategy(framework="tensorflow") as strategy:
        _begin(strategy)
        before = _status("VmRSS")
        found = real(function, job.training)
        step = strategy.train_step(found.model, found.loss, _optimizer(job.training.optimizer))
        batch = _share(found, job, strategy)
        for _ in range(_WARM):
            float(step(*batch))
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
        float(step(*batch))
        peak = _status("VmHWM") - before
        return Trial(peak, None, _timed(lambda: float(step(*batch)), strategy, job.steps))


def _begin(strategy: Strategy) -> None:
    """Have TensorFlow load what it loads on first use, which is no model's."""
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 3), keras.layers.Flatten(),
         keras.layers.Dense(2)]
    )  # fmt: skip
    step = strategy.train_step(model, _mean, keras.optimizers.SGD())
    for _ in range(_WARM):
        float(step(np.ones((2, 8, 8, 1), "float32"), np.ones((2, 2), "float32")))


def _mean(prediction: Any, _: Any) -> Any:
    return keras.ops.mean(prediction)


def _optimizer(name: Optimizer) -> Any:
    if name in ("sgd", "momentum"):
        return keras.optimizers.SGD(momentum=0.9 if name == "momentum" else 0.0)
    return keras.optimizers.Adam() if name == "adam" else keras.optimizers.AdamW()


def _share(found: Example, job: Job, strategy: Strategy) -> tuple[Any, ...]:
    place = strategy.topology
    first, last = job.share(place.rank, place.world_size)
    inputs, target = found.specs(last - first)
    arrays = [np.zeros(x.shape, x.dtype.as_numpy_dtype) for x in inputs]
    y = np.zeros(last - first) if target is None else np.zeros(target.shape, target.dtype.name)
    return (*arrays, y)


def _status(name: str) -> int:
    """Bytes, by the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def _timed(step: Callable[[], Any], strategy: Strategy, steps: int) -> list[float]:
    taken = []
    for _ in range(steps):
        strategy.communicator.barrier()
        begin = perf_counter()
        step()
        taken.append(perf_counter() - begin)
    return taken
