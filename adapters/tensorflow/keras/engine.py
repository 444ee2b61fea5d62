"""What Keras's TensorFlow backend needs across processes, each with one device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import tensorflow as tf

from dream._adapter import Plan
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.tensorflow.engine import DIFFER, TensorFlowEngine
from dream.adapters.tensorflow.keras import data as keras_data
from dream.adapters.tensorflow.randomness import offset_by
from dream.collectives import Communicator


@final
class ProcessEngine(TensorFlowEngine):
    """Ordinary Keras on one device in each process; the communicator adds up."""

    pooled = False

    def __init__(self, communicator: Communicator, plan: Plan) -> None:
        self.communicator = communicator
        self._adding = communicator.unchecked()  # the same on every rank, at every step
        self.rank = communicator.rank
        self.parts = communicator.world_size
        self.seed = plan.seed
        self.resyncs = plan.resyncs

    def total(self, tensors: Sequence[Any]) -> list[Any]:
        return list(self._adding.all_reduce([tf.convert_to_tensor(t) for t in tensors], "sum"))

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

    def creating(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def stepping(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def outside(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = tf.init_scope()
        return scope

    def adopt_optimizer(self, optimizer: Any) -> None:
        """Nothing: without a strategy of TensorFlow's, optimizers know one device."""

    def adopt_model(self, model: Any) -> None:
        """Nothing: the trainer knows one device."""

    def offset_seed(self, state: Any) -> None:
        if self.rank:
            state.assign(state + tf.constant([self.rank, 0], state.dtype))

    def offset_generators(self) -> None:
        offset_by(self.rank)
