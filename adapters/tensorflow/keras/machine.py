"""TensorFlow's way with parameters end to end: compiled functions of one flat tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream.adapters.keras.asynchronous.block import Local, ServedMachine, apply_gradients
from dream.adapters.tensorflow.keras import slices
from dream.adapters.tensorflow.tracing import Compiled


@final
class TensorFlowMachine(ServedMachine):
    """Parameters end to end on one device."""

    def update(self, optimizer: Any, variables: Sequence[Any]) -> Callable[[Any, bytes], Any]:
        def apply(gradient: Any, present: bytes) -> Any:
            apply_gradients(optimizer, _parts(gradient, variables), variables, present)
            return _joined(variables)

        compiled = tf.function(apply)
        return lambda gradient, present: compiled(tf.convert_to_tensor(gradient), present).numpy()

    def load(self, variables: Sequence[Any], counter: Any) -> Callable[[Any, int], None]:
        @tf.function  # type: ignore[untyped-decorator]
        def assign(flat: Any, count: Any) -> None:
            for variable, part in zip(variables, _parts(flat, variables), strict=True):
                variable.value.assign(part)
            counter.value.assign(count)

        dtype = tf.as_dtype(counter.dtype)
        return lambda flat, count: assign(tf.convert_to_tensor(flat), tf.constant(count, dtype))

    def flat(self, variables: Sequence[Any]) -> NDArray[Any]:
        return np.array(_joined(variables))

    def differentiate(
        self, local: Local, variables: Sequence[Any], *, eager: bool, one_length: bool
    ) -> Callable[[tuple[Any, ...], NDArray[Any]], tuple[Any, bytes]]:
        present = b""

        def run(*batch: Any) -> tuple[Any, Any]:
            nonlocal present
            told, gradients = local(*batch)
            present = bytes(gradient is not None for gradient in gradients)
            return told, _end_to_end(gradients, variables)

        compiled: Callable[..., Any] = run
        if not eager:
            compiled = tf.function(run, reduce_retracing=True) if one_length else Compiled(run)

        def call(batch: tuple[Any, ...], into: NDArray[Any]) -> tuple[Any, bytes]:
            told, flat = compiled(*batch)
            np.copyto(into, flat.numpy())
            return told, b"" if all(present) else present

        return call

    def dense(self, gradients: Sequence[Any], optimizer: Any) -> list[Any]:
        return slices.dense(gradients, optimizer)

    def tensors(self, batch: Any) -> Any:
        return tf.nest.map_structure(
            lambda x: None if x is None else tf.convert_to_tensor(x), batch
        )


def _end_to_end(gradients: Sequence[Any], variables: Sequence[Any]) -> tf.Tensor:
    """Zeros where there is no gradient."""
    return tf.concat(
        [
            tf.zeros([int(np.prod(v.shape))], v.dtype)
            if g is None
            else tf.reshape(tf.cast(g, v.dtype), [-1])
            for g, v in zip(gradients, variables, strict=True)
        ],
        0,
    )


def _joined(variables: Sequence[Any]) -> tf.Tensor:
    return tf.concat([tf.reshape(v.value, [-1]) for v in variables], 0)


def _parts(flat: tf.Tensor, variables: Sequence[Any]) -> list[tf.Tensor]:
    """The tensors of the variables' shapes that a flat one is made of."""
    parts = tf.split(flat, [int(np.prod(v.shape)) for v in variables])
    return [tf.reshape(part, v.shape) for part, v in zip(parts, variables, strict=True)]
