"""Observe a loop around a GradientTape for `dream verify`: where gradients of variables are taken,
and which models were called. Changed once, for the life of a process that is verified.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import keras
import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.keras.tools.verify import traits
from dream.tools.recorder import Recorder

_TELLING = "EagerPyFunc"
"""The operation by which a graph tells."""


def observe(recorder: Recorder) -> None:
    """From now on, tell the recorder."""
    seen = TapeHooks(recorder)
    compiled = type(tf.function(lambda: None))
    tf.GradientTape.gradient = seen.gradient(tf.GradientTape.gradient)
    compiled.__call__ = seen.function(compiled.__call__)
    keras.Model.__call__ = seen.call(keras.Model.__call__)
    for optimizer in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.scale_loss = seen.scale(optimizer.scale_loss)


@final
class TapeHooks:
    """Wraps TensorFlow's and Keras's functions. Keeps what was seen since the last step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._models: list[Any] = []
        self._samples: int | None = None
        self._scaled: list[tuple[Any, Any]] = []
        """What an optimizer scaled since the last step: the outcome, and the loss."""
        self._outermost = True

    def gradient(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`GradientTape.gradient`: of a number, by variables, it is a step."""

        @wraps(original)
        def wrapped(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            variables = {id(x) for x in tf.nest.flatten(sources) if hasattr(x, "assign")}
            if variables and not self._recorder.inside and _is_number(target):
                self._step(target, variables)
            return original(tape, target, sources, *args, **kwargs)

        return wrapped

    def scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Optimizer.scale_loss`, for a tape around float16."""

        @wraps(original)
        def wrapped(optimizer: Any, loss: Any) -> Any:
            made = original(optimizer, loss)
            self._scaled.append((made, loss))
            return made

        return wrapped

    def _step(self, target: Any, variables: set[int]) -> None:
        loss = next((given for made, given in self._scaled if made is target), target)
        self._scaled.clear()
        for model in self._models:
            if variables & {id(x) for v in model.trainable_variables for x in (v, v.value)}:
                self._recorder.saw_model(model, traits)
        samples, self._samples = self._samples, None
        if tf.executing_eagerly():
            self._recorder.before_step()
            self._recorder.step(loss, samples, local=True)
        else:  # traced once and run often: each run tells
            tf.py_function(self._ran, [loss], [])

    def _ran(self, loss: tf.Tensor) -> None:
        self._recorder.step(loss, local=True)

    def function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a tf.function's call: there may be steps in it, which nobody can end from inside."""

        @wraps(original)
        def wrapped(function: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly() and not self._recorder.inside:
                self._recorder.before_step()
            try:
                return original(function, *args, **kwargs)
            except tf.errors.InvalidArgumentError as error:
                if _TELLING in str(error):  # what it says is of no use
                    raise Unsupported(
                        "What XLA compiles cannot tell its losses, so it cannot be recorded. "
                        "Received: a step in tf.function(jit_compile=True). Remove jit_compile: a "
                        "compiled step cannot hold the sum over the replicas either."
                    ) from None
                raise

        return wrapped

    def call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Model.__call__`: the outermost one may be of a model that is trained."""

        @wraps(original)
        def wrapped(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._outermost or self._recorder.inside:
                return original(model, *args, **kwargs)
            if all(model is not known for known in self._models):
                self._models.append(model)
            if self._samples is None:
                self._samples = _samples((args, kwargs))
            self._outermost = False
            try:
                return original(model, *args, **kwargs)
            finally:
                self._outermost = True

        return wrapped


def _is_number(target: Any) -> bool:
    return isinstance(target, tf.Tensor) and target.shape.num_elements() == 1


def _samples(given: Any) -> int | None:
    """In the first tensor; None in a graph, where it may be another each time."""
    if not tf.executing_eagerly():
        return None
    first = next((x for x in tf.nest.flatten(given) if getattr(x, "shape", ())), None)
    return None if first is None else first.shape[0]
