"""What Keras's TensorFlow backend needs wherever its replicas are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import tensorflow as tf

from dream._errors import Desynchronized
from dream._spec import Framework
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.engine import Engine
from dream.adapters.tensorflow import folding
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.global_moments import global_moments

DIFFER = "ranks read different batches"


class TensorFlowEngine(Engine):
    """Keras's steps in TensorFlow; where the parts are, and who adds up, is left open."""

    @property
    def framework(self) -> Framework:
        return "tensorflow"

    def weigh(self, tensors: Sequence[Any], weight: Any) -> list[Any]:
        dense = [tf.convert_to_tensor(t) for t in tensors]
        return [tf.math.multiply_no_nan(t, tf.cast(weight, t.dtype)) for t in dense]

    def keep(self, share: Any, tensors: Sequence[Any]) -> list[Any]:
        return [tf.where(share[0] > 0, t, tf.zeros_like(t)) for t in tensors]

    def copies(self, variables: Sequence[Any]) -> list[Any]:
        return [tf.identity(tf.convert_to_tensor(v.value)) for v in variables]

    def rows(self, batch: Any) -> Any:
        return folding.rows(batch)

    def micros(self, rows: Any) -> Any:
        return tf.clip_by_value(rows, 1, self.knobs.accumulate)

    def ratio(self, some: Any, rows: Any) -> Any:
        return folding.ratio(some, rows)

    def fold(
        self, times: Any, compute: Callable[[Any], list[Any]], like: Sequence[Any]
    ) -> list[Any]:
        return folding.fold(times, compute, like)

    def moments(
        self, x: Any, axes: Sequence[int], mask: Any, present: Any, worth: Any
    ) -> tuple[Any, Any]:
        return global_moments(x, axes, mask, self.total, present, worth)

    def differentiable(self, x: Any) -> bool:
        return bool(tf.is_tensor(x)) and x.dtype.is_floating

    def recompute(self, run: Callable[..., Sequence[Any]], tensors: Sequence[Any]) -> Sequence[Any]:
        again: Callable[..., Sequence[Any]] = tf.recompute_grad(run)
        return again(*tensors)

    def example(self, source: Arrays | Batches) -> Any:
        return example(source)

    def looping(self) -> AbstractContextManager[Any]:
        return explained()

    def applying(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def take_over(self, model: Any) -> None:
        """Nothing else has hold of a Keras model."""


def example(source: Arrays | Batches) -> Any:
    if isinstance(source, Arrays):
        return source.inputs
    return source.adapter.get_tf_dataset().element_spec


@contextmanager
def explained() -> Iterator[None]:
    """TensorFlow's errors from a loop, in dream's words."""
    try:
        with translated():
            yield
    except tf.errors.InvalidArgumentError as error:
        if DIFFER not in str(error):
            raise
        raise Desynchronized(
            "The ranks read different batches from the same source. Received: batch digests that "
            "differ between ranks. Seed what draws or shuffles the data, so that every rank sees "
            "the same global batches."
        ) from error
