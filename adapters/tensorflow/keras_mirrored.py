"""What Keras's TensorFlow backend needs in one process with several devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import tensorflow as tf

from dream._errors import ConfigurationError
from dream._spec import Framework
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.sources import Arrays, Batches
from dream.adapters.tensorflow import keras_data, keras_private
from dream.adapters.tensorflow.folding import fold, ratio, rows
from dream.adapters.tensorflow.global_moments import global_moments
from dream.adapters.tensorflow.keras_engine import (
    copies,
    differentiable,
    example,
    explained,
    keep,
    recompute,
    weigh,
)
from dream.adapters.tensorflow.tensors import TensorFlowTensors
from dream.communication import Communicator
from dream.communication.dtypes import CARRIED
from dream.communication.pack import Pack


@final
class MirroredEngine(Engine):
    """MirroredStrategy: every device takes the same step on its share."""

    pooled = True
    resyncs = None
    rank = 0

    def __init__(
        self, distribution: tf.distribute.Strategy, communicator: Communicator, seed: int
    ) -> None:
        self.communicator = communicator
        self.parts = distribution.num_replicas_in_sync
        self.seed = seed
        self._distribution = distribution

    @property
    def framework(self) -> Framework:
        return "tensorflow"

    def total(self, tensors: Sequence[Any]) -> list[Any]:
        values = [tf.convert_to_tensor(t) for t in tensors]
        pack = Pack.of(TensorFlowTensors(), values, [CARRIED[v.dtype.name] for v in values])
        replica = tf.distribute.get_replica_context()
        return pack.unpack(
            [replica.all_reduce(tf.distribute.ReduceOp.SUM, buffer) for buffer in pack.buffers]
        )

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
        return []

    def check_digests(self, share: Any, digests: Any) -> None:
        """One process reads one source."""

    def arrays(self, source: Arrays) -> Any:
        return self._placed(keras_data.of_arrays(source, range(self.parts), self.parts))

    def batches(self, source: Batches) -> Any:
        dataset = source.adapter.get_tf_dataset()
        if source.fixed:
            dataset = keras_data.beginning_late(dataset, source.passes)
        return self._placed(
            keras_data.of_batches(dataset, range(self.parts), self.parts, keras_data.none)
        )

    def _placed(self, dataset: tf.data.Dataset) -> Any:
        """Elements by turns on the devices, as they come."""
        return self._distribution.distribute_datasets_from_function(lambda _: dataset)

    def example(self, source: Arrays | Batches) -> Any:
        return example(source)

    def creating(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self._distribution.scope()
        return scope

    def looping(self) -> AbstractContextManager[Any]:
        return explained()

    def stepping(self) -> AbstractContextManager[Any]:
        return keras_private.unscaled_losses()

    def applying(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def outside(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def adopt_optimizer(self, optimizer: Any) -> None:
        self._check_made_here(optimizer)
        keras_private.updates_own_copy(optimizer)

    def adopt_model(self, model: Any) -> None:
        self._check_made_here(model)
        keras_private.built_already(model)

    def _check_made_here(self, item: Any) -> None:
        if keras_private.strategy_of(item) is not self._distribution:
            raise ConfigurationError(
                "The variables of what is made outside the block lie on one device. Received: "
                f"{type(item).__name__} {item.name!r}, replicas={self.parts} in one process. Make "
                "it inside the block."
            )

    def take_over(self, model: Any) -> None:
        """Nothing else has hold of a Keras model."""

    def offset_seed(self, state: Any) -> None:
        for index, own in enumerate(self._distribution.experimental_local_results(state.value)):
            own.assign(own + tf.constant([index, 0], own.dtype))

    def offset_generators(self) -> None:
        """One process has one set of generators."""
