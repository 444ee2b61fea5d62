"""A real training of a Keras model, watched: what TensorFlow's allocator gives, what goes to its
collectives, and time."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import keras
import numpy as np

import dream
from dream._strategy import Strategy
from dream.adapters.tensorflow.tools.planning.counted import counting
from dream.adapters.tensorflow.tools.planning.example import Example, real
from dream.adapters.tensorflow.tools.planning.watched import watching
from dream.tools.plan.asked import Optimizer
from dream.tools.plan.trial import Job, Trial

_WARM = 3


def run(function: Callable[[], Any], job: Job) -> Trial:
    """This rank's part of it."""
    strategy = dream.strategy(framework="tensorflow")
    with strategy, counting() as counts, watching() as watch:
        found = real(function, job.training)
        step = strategy.train_step(found.model, found.loss, _optimizer(job.training.optimizer))
        batch = _share(found, job, strategy)
        for _ in range(_WARM):
            counts.begin()
            with watch.step():
                float(step(*batch))
        given = counts.given()
    return Trial(watch.peak, given, _timed(lambda: float(step(*batch)), strategy, job.steps))


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


def _timed(step: Callable[[], Any], strategy: Strategy, steps: int) -> list[float]:
    taken = []
    for _ in range(steps):
        strategy.communicator.barrier()
        begin = perf_counter()
        step()
        taken.append(perf_counter() - begin)
    return taken
