"""What Keras's TensorFlow backend needs across processes, each with one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import tensorflow as tf

from dream._adapter import Plan
from dream._errors import Desynchronized
from dream._spec import Framework
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.sources import Arrays, Batches
from dream.adapters.tensorflow import keras_data
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.folding import fold, ratio, rows
from dream.adapters.tensorflow.global_moments import global_moments
from dream.adapters.tensorflow.randomness import offset_by
from dream.communication import Communicator

DIFFER = "ranks read different batches"


@final
class ProcessEngine(Engine):
    """Ordinary Keras on one device in each process; the communicator adds up."""

    pooled = False

    def __init__(self, communicator: Communicator, plan: Plan) -> None:
        self.communicator = communicator
        self._adding = communicator.unchecked()  # the same on every rank, at every step
        self.rank = communicator.rank
        self.parts = communicator.world_size
        self.seed = plan.seed
        self.resyncs = plan.resyncs

    @property
    def framework(self) -> Framework:
        return "tensorflow"

    def total(self, tensors: Sequence[Any]) -> list[Any]:
        return list(self._adding.all_reduce([tf.convert_to_tensor(t) for t in tensors], "sum"))

    def weigh(self, tensors: Sequence[Any], weight: Any) -> list[Any]:
        return weigh(tensors, weight)

    def keep(self, share: Any, tensors: Sequence[Any]) -> list[Any]:
        return keep(share, tensors)

    def copies(self, variables: Sequence[Any]) -> list[Any]:
        return copies(variables)

    def rows(self, batch: Any) -> Any:
        return rows(batch)

    def micros(self, rows: Any) -> Any:
        return tf.clip_by_value(rows, 1, self.knobs.accumulate)

    def ratio(self, some: Any, rows: Any) -> Any:
        return ratio(some, rows)

    def fold(
        self, times: Any, compute: Callable[[Any], list[Any]], like: Sequence[Any]
    ) -> list[Any]:
        return fold(times, compute, like)

    def moments(
        self, x: Any, axes: Sequence[int], mask: Any, present: Any, worth: Any
    ) -> tuple[Any, Any]:
        return global_moments(x, axes, mask, self.total, present, worth)

    def differentiable(self, x: Any) -> bool:
        return differentiable(x)

    def recompute(self, run: Callable[..., Sequence[Any]], tensors: Sequence[Any]) -> Sequence[Any]:
        return recompute(run, tensors)

    def one_hot(self, share: Any) -> list[Any]:
        return [tf.one_hot(self.rank, self.parts) * share[2]]

    def check_digests(self, share: Any, digests: Any) -> None:
        tf.debugging.assert_equal(digests, tf.fill([self.parts], digests[0]), message=DIFFER)

    def arrays(self, source: Arrays) -> Any:
        return keras_data.of_arrays(source, [self.rank], self.parts)

    def batches(self, source: Batches) -> Any:
        dataset = source.adapter.get_tf_dataset()
        if source.fixed:
            dataset = keras_data.beginning_late(dataset, source.passes)
        if self.parts == 1:
            return dataset
        digest_of = keras_data.common if self.mixed else keras_data.own
        return keras_data.of_batches(dataset, [self.rank], self.parts, digest_of)

    def example(self, source: Arrays | Batches) -> Any:
        return example(source)

    def creating(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def looping(self) -> AbstractContextManager[Any]:
        return explained()

    def stepping(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def applying(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def outside(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = tf.init_scope()
        return scope

    def adopt_optimizer(self, optimizer: Any) -> None:
        """Nothing: without a strategy of TensorFlow's, optimizers know one device."""

    def adopt_model(self, model: Any) -> None:
        """Nothing: the trainer knows one device."""

    def take_over(self, model: Any) -> None:
        """Nothing else has hold of a Keras model."""

    def offset_seed(self, state: Any) -> None:
        if self.rank:
            state.assign(state + tf.constant([self.rank, 0], state.dtype))

    def offset_generators(self) -> None:
        offset_by(self.rank)


def weigh(tensors: Sequence[Any], weight: Any) -> list[Any]:
    """Each tensor times `weight`; exactly 0 where that is 0, whatever the tensor is."""
    dense = [tf.convert_to_tensor(t) for t in tensors]
    return [tf.math.multiply_no_nan(t, tf.cast(weight, t.dtype)) for t in dense]


def keep(share: Any, tensors: Sequence[Any]) -> list[Any]:
    return [tf.where(share[0] > 0, t, tf.zeros_like(t)) for t in tensors]


def copies(variables: Sequence[Any]) -> list[Any]:
    return [tf.identity(tf.convert_to_tensor(v.value)) for v in variables]


def differentiable(x: Any) -> bool:
    return bool(tf.is_tensor(x)) and x.dtype.is_floating


def recompute(run: Callable[..., Sequence[Any]], tensors: Sequence[Any]) -> Sequence[Any]:
    again: Callable[..., Sequence[Any]] = tf.recompute_grad(run)
    return again(*tensors)


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
