"""Tell `dream profile` of the phases of Keras's `fit`. Keras is changed once, for the life of a
process that is profiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, final

import keras

from dream.adapters.keras import callbacks
from dream.stall.phases import Phase
from dream.strategies import registry
from dream.tools import frameworks
from dream.tools.profile.profiler import Profiler, clock

Inner = Callable[[float, float], None]
"""Tells what is known of a batch from within: (begin, end)."""


def observe(profiler: Profiler) -> None:
    """From now on, tell the profiler."""
    if keras.config.backend() == "torch":
        apply = keras.optimizers.Optimizer.apply
        keras.optimizers.Optimizer.apply = profiler.timed(Phase.OPTIMIZER, apply)
        inner = None
    else:
        inner = registry.load(frameworks.INSIDE_STEPS)(profiler)
    keras.Model.fit = _fit(keras.Model.fit, profiler, inner)


@final
class BatchTimes(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Takes the time as a batch begins and ends. inner: None where the backend's own calls tell of
    phases, and batches are read between one step and the next."""

    def __init__(self, profiler: Profiler, inner: Inner | None) -> None:
        super().__init__()
        self._profiler, self._inner = profiler, inner
        self._begin = 0.0
        self._end: float | None = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._end = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._profiler.enough:
            self._profiler.stop()
        self._begin = clock()
        if self._inner is None and self._end is not None:
            self._profiler.phase(Phase.INPUT, self._end, self._begin)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._end = clock()
        if self._inner is not None:
            if self.model.steps_per_execution == 1:
                self._inner(self._begin, self._end)
            else:
                self._profiler.phase(Phase.STEP, self._begin, self._end)
        self._profiler.step_ended()


def _fit(
    original: Callable[..., Any], profiler: Profiler, inner: Inner | None
) -> Callable[..., Any]:
    known = signature(original)

    @wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = known.bind(self, *args, **kwargs).arguments
        times = BatchTimes(profiler, inner)
        given["callbacks"] = callbacks.joined(given.get("callbacks"), [times])
        return original(**given)

    return fit
