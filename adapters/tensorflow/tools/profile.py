"""Tell `dream profile` of what happens inside a compiled step, by times that the graph itself
takes. They are there in a process that is profiled alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import tensorflow as tf

from dream.adapters.keras import step as keras_step
from dream.adapters.tensorflow.keras.engine import ProcessEngine
from dream.stall.phases import Phase
from dream.tools.profile.profiler import Profiler

_READY, _COMPUTED, _REDUCED = range(3)


def observe(profiler: Profiler) -> None:
    """Steps of `fit` are told by Keras's part; those of train_step, as a whole, by the profiler."""
    del profiler


def inside_steps(profiler: Profiler) -> Callable[[float, float], None]:
    """Have steps of ranks take the time when their batch is there, when gradients are computed and
    when they are added up. Return what tells of the last one."""
    stamps = [tf.Variable(0.0, dtype=tf.float64, trainable=False) for _ in range(3)]
    keras_step.train_step = _stamped_step(keras_step.train_step, stamps[_READY])
    ProcessEngine.total = _stamped_total(  # type: ignore[method-assign]
        ProcessEngine.total, stamps[_COMPUTED], stamps[_REDUCED]
    )

    def tell(begin: float, end: float) -> None:
        since = time.time() - time.monotonic()  # the graph's clock counts from 1970
        ready, computed, reduced = (float(stamp) - since for stamp in stamps)
        if not begin <= ready <= computed <= reduced <= end:  # one device adds nothing up
            profiler.phase(Phase.STEP, begin, end)
            return
        profiler.phase(Phase.INPUT, begin, ready)
        profiler.phase(Phase.STEP, ready, computed)
        profiler.met("gradients", computed, reduced)
        profiler.phase(Phase.OPTIMIZER, reduced, end)

    return tell


def _take(stamp: Any, after: Any) -> None:
    tensors = [t for t in tf.nest.flatten(after) if tf.is_tensor(t)]
    with tf.control_dependencies(tensors):
        stamp.assign(tf.timestamp())


def _stamped_step(original: Callable[..., Any], ready: Any) -> Callable[..., Any]:
    @wraps(original)
    def train_step(model: Any, engine: Any, element: Any) -> Any:
        if isinstance(engine, ProcessEngine):
            _take(ready, element)
        return original(model, engine, element)

    return train_step


def _stamped_total(
    original: Callable[..., list[Any]], computed: Any, reduced: Any
) -> Callable[..., list[Any]]:
    @wraps(original)
    def total(engine: ProcessEngine, tensors: Sequence[Any]) -> list[Any]:
        given = [tf.convert_to_tensor(t) for t in tensors]
        _take(computed, given)
        summed = original(engine, given)
        _take(reduced, summed)
        return summed

    return total
