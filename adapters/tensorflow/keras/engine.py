"""Keras's TensorFlow backend across processes, each with one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, final

import numpy as np
import tensorflow as tf

from dream._adapter import Plan
from dream.adapters.keras.block import KerasBlock
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.engine import Array, LossGradients
from dream.adapters.keras.update.exchange import PartsExchange
from dream.adapters.tensorflow.engine import TensorFlowEngine, common
from dream.adapters.tensorflow.keras import data, slices
from dream.adapters.tensorflow.keras.draws import GraphRows, drawing
from dream.adapters.tensorflow.keras.mirrored import MirroredEngine
from dream.adapters.tensorflow.keras.pace import GraphClock, OwnRuns
from dream.adapters.tensorflow.keras.parted import PartedBatches
from dream.adapters.tensorflow.randomness import TensorFlowGenerators
from dream.adapters.tensorflow.tensors import scalars_in_rows
from dream.collectives import Communicator
from dream.update.update import UpdateOptions


def open_block(
    plan: Plan,
    communicator: Communicator,
    distribution: tf.distribute.Strategy | None,
    exchange: PartsExchange | None,
) -> KerasBlock:
    """Open the block in which Keras models are distributed: over the devices of this process where
    it has several, and over the ranks."""
    engine = (
        ProcessEngine(communicator, plan)
        if distribution is None
        else MirroredEngine(distribution, communicator, plan.seed)
    )
    engine.update_options, engine.exchange = UpdateOptions.of(plan.options), exchange
    engine.draws_locally = plan.randomness == "local"
    return KerasBlock(engine)


@final
class ProcessEngine(TensorFlowEngine):
    """Ordinary Keras on one device in each process; the communicator adds up."""

    def __init__(self, communicator: Communicator, plan: Plan) -> None:
        self._deal_to_ranks(communicator, plan)
        self.generators = TensorFlowGenerators()
        self.whole_loops = not self.mixed
        self._adding = communicator.unchecked()  # the same on every rank, at every step
        self.parted = plan.options.get("input") == "sharded" and self.parts > 1
        self._own_parts: PartedBatches | None = None
        self._runs: OwnRuns | None = None
        if plan.options.get("shares") == "auto" and self.parts > 1:
            self._follow_speeds(GraphClock())
            self._runs = OwnRuns(self.rank, self.division)

    def total(self, tensors: Sequence[Any]) -> list[Any]:
        if self.pace is not None:
            self.pace.clock.stop(tensors)
        return slices.total(tensors, self._added, self.rank, self.parts)

    def _added(self, tensors: list[Any]) -> list[Any]:
        return scalars_in_rows(tensors, lambda t: list(self._adding.all_reduce(t, "sum")))

    def one_hot(self, share: BatchShare) -> list[Any]:
        if share.digest is None:
            return []
        return [tf.one_hot(self.rank, self.parts) * share.digest]

    def common(self, gradients: Sequence[Any], received: str) -> list[Any]:
        return common(gradients, self.total, self.parts, received)

    def arrays(self, source: Arrays) -> Any:
        if self.parts == 1:
            return data.Dealt(source, data.whole_arrays(source))
        if self._runs is not None:
            return data.Dealt(source, data.undivided_arrays(source))
        shares = data.of_arrays(source, [self.rank], self.division, even=not self.mixed)
        return data.Dealt(source, shares)

    def batches(self, source: Batches) -> Any:
        if self.parts == 1:
            return data.Dealt(source, data.whole_batches(source))
        if source.parted:
            self._own_parts = own = self._own_parts or PartedBatches(self.communicator)
            return data.Dealt(source, own.elements(source), begins=own.begin)
        digest_of = data.common_digest if self.mixed else data.own_digest
        if self._runs is not None:
            return data.Dealt(source, data.undivided_batches(source, self.division, digest_of))
        shares = data.of_batches(source, [self.rank], self.division, digest_of, even=not self.mixed)
        return data.Dealt(source, shares)

    def own_of(self, element: Any) -> tuple[Any, BatchShare]:
        assert self._runs is not None
        return self._runs.of(element)

    def redivided(self) -> None:
        if self._runs is not None:
            self._runs.divide(self.division)

    @property
    def over(self) -> bool:  # type: ignore[override]
        return self._own_parts is not None and self._own_parts.over

    def met(self, count: Any, more: Any) -> BatchShare:
        assert self._own_parts is not None
        return self._own_parts.met(count, more)

    def outside(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = tf.init_scope()
        return scope

    def drawing(self, share: BatchShare) -> AbstractContextManager[Any]:
        if share.first is None and self.division.weights is not None:  # in a step by hand
            total = tf.cast(share.total, tf.int32)
            edges = tf.constant(self.division.edges, tf.int64)
            begin = data.run(edges, total, self.rank)[2]
            share = BatchShare(share.count, share.total, share.digest, begin, share.rows)
        return drawing(GraphRows(share, tf.constant(self.rank), self.parts))


def differentiate(
    call: Callable[[], Sequence[Any]], variables: Sequence[Any], loss_gradients: LossGradients
) -> list[Array | None]:
    """Return the gradient by each keras.Variable, None where none flows. call: gives outputs."""
    sources = [variable.value for variable in variables]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        outputs = [tf.convert_to_tensor(x) for x in call()]
    found = loss_gradients([_array(x) for x in outputs])
    flowing = [(x, tf.cast(s, x.dtype)) for x, s in zip(outputs, found, strict=True)
               if x.dtype.is_floating]  # fmt: skip
    gradients = tape.gradient([x for x, _ in flowing], sources, [s for _, s in flowing])
    return [None if g is None else _array(tf.convert_to_tensor(g)) for g in gradients]


def _array(x: Any) -> Array:
    return np.array(tf.cast(x, tf.float32) if x.dtype == tf.bfloat16 else x)
