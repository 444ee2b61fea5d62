"""The explicit training step: one sum over the parts for gradients, loss and running statistics.

Each part adds up what it has times what it counts for, and the counts themselves; the quotient is
the mean over the global batch, however uneven the shares are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import keras
import tensorflow as tf

from dream import stall
from dream._adapter import Loss, Step, Weight
from dream._errors import ConfigurationError
from dream.adapters.keras.consistency import seeds_of, statistics_of
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.forward import check_loss, forward
from dream.adapters.keras.hooks import unscaled_losses
from dream.adapters.keras.optimizer import reduced_scope
from dream.adapters.keras.update import batch_norm
from dream.adapters.keras.update.exchange import PartsExchange
from dream.adapters.keras.update.gradient_format import GradientFormat, NativeFormat
from dream.adapters.tensorflow.data import Totals
from dream.adapters.tensorflow.engine import fold, rows_of
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.keras import slices
from dream.adapters.tensorflow.loss import Batch, Total, count_of, value_of
from dream.adapters.tensorflow.tracing import Compiled
from dream.collectives import Communicator
from dream.data.partition import split
from dream.model_description.layout import check_same, unnumbered


class LocalStep:
    """Trains on one part's share of a batch.

    total: None where there is one part. ranks: whether the parts are processes. Running statistics
    of several are reduced here; replicas of one process have theirs reduced by TensorFlow.
    most: micro-batches that a part's share is computed in, at most.
    engine: what offers the statistics of all parts' samples; None for nothing.
    trained: what of the model gradients are taken of, and applied to.
    form: in which gradients travel; to be set before the first step.
    """

    def __init__(
        self,
        model: Any,
        loss: Loss,
        optimizer: Any,
        weight: Weight | None,
        total: Total | None,
        *,
        ranks: bool,
        most: int = 1,
        engine: Engine | None = None,
        trained: Callable[[Any], Sequence[Any]] = attrgetter("trainable_variables"),
    ) -> None:
        check_loss(loss)
        self._model = model
        self._loss = loss
        self._optimizer = optimizer
        self._weight = weight
        self._total = total
        self._ranks = ranks
        self._most = most
        self._engine = engine
        self._trained = trained
        self._missing: list[bool] = []
        self.form: GradientFormat = NativeFormat()

    def __call__(self, *batch: Any) -> tf.Tensor:
        """Train, and return the global mean loss, penalties of the model's layers included."""
        return self.on_share(tf.constant(0), *batch)

    def on_share(self, samples: tf.Tensor, *batch: Any) -> tf.Tensor:
        """Do the same on a share of a global batch of so many samples; 0 where nobody has dealt
        it."""
        if self._engine is None or self._engine.parts == 1:
            return self._train(batch)
        share = BatchShare(count_of(batch), tf.cast(samples, tf.float32))
        with self._engine.drawing(share):
            return self._train(batch)

    def _train(self, batch: Batch) -> tf.Tensor:
        together = self._engine is not None and batch_norm.synchronises(self._model, self._engine)
        if together:
            value, gradients = self._together(batch)
        else:
            differentiate = self._differentiate if self._most == 1 else self._in_micros
            value, gradients = differentiate(batch)
        if self._total is not None:
            value, gradients = self._reduce(batch, value, gradients, weighed=together)
        self._apply(gradients)
        return value

    def _together(self, batch: Batch) -> tuple[tf.Tensor, list[Any]]:
        """With the statistics of all parts' samples, so that a part's loss depends on others'
        gradients: these are weighed as they arise."""
        assert self._engine is not None
        with batch_norm.global_statistics(self._model, self._engine):
            return self._differentiate(batch, self._count(batch))

    def _differentiate(
        self, batch: Batch, weight: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, list[Any]]:
        """(loss, gradients). weight: what the gradients are multiplied by."""
        inputs, target = split(batch)
        with tf.GradientTape() as tape:
            prediction = forward(self._model, inputs, training=True)
            with nullcontext() if self._ranks else unscaled_losses():
                value = tf.reduce_mean(value_of(self._loss, prediction, target))
            penalties = getattr(self._model, "losses", [])
            value = tf.add_n([value, *(tf.cast(p, value.dtype) for p in penalties)])
            scaled = self._optimizer.scale_loss(value)
            if weight is not None:
                scaled *= tf.cast(weight, scaled.dtype)
        return value, tape.gradient(scaled, self._trained(self._model))

    def _in_micros(self, batch: Batch) -> tuple[tf.Tensor, list[Any]]:
        """The means over micro-batches that count for what is in them."""
        rows = rows_of(batch)
        micros = tf.clip_by_value(rows, 1, self._most)

        def compute(micro: tf.Tensor) -> list[tf.Tensor]:
            start, stop = micro * rows // micros, (micro + 1) * rows // micros
            return self.micro(*tf.nest.map_structure(lambda t: t[start:stop], batch))

        variables = self._model.trainable_variables
        like = [tf.zeros([]), tf.zeros([]), *(v.value for v in variables)]
        return self._means(fold(micros, compute, like))

    def micro(self, *part: Any) -> list[tf.Tensor]:
        """Return what a micro-batch counts for, its loss and its gradients times that."""
        value, gradients = self._differentiate(part)
        self._missing = [g is None for g in gradients]
        whole = slices.dense(gradients, self._optimizer)
        found = [
            tf.zeros_like(v.value) if g is None else g
            for v, g in zip(self._model.trainable_variables, whole, strict=True)
        ]
        count = self._count(part)
        return [count, *(_times(x, count) for x in (tf.cast(value, tf.float32), *found))]

    def finish(self, *sums: tf.Tensor) -> tf.Tensor:
        """Train by the sums of what micro-batches gave, where there is one part."""
        value, gradients = self._means(sums)
        self._apply(gradients)
        return value

    def _means(self, given: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[Any]]:
        count, *sums = given
        value, *means = (tf.math.divide_no_nan(x, tf.cast(count, x.dtype)) for x in sums)
        return value, [None if no else m for no, m in zip(self._missing, means, strict=True)]

    def _apply(self, gradients: list[Any]) -> None:
        with reduced_scope():
            self._optimizer.apply(gradients, self._trained(self._model))

    def _reduce(
        self, batch: Batch, value: tf.Tensor, gradients: list[Any], *, weighed: bool
    ) -> tuple[tf.Tensor, list[Any]]:
        """Reduce loss and gradients over the parts. weighed: whether the gradients count for what
        they are worth."""
        assert self._total is not None
        count = self._count(batch)
        gradients = slices.dense(gradients, self._optimizer)
        engine = self._engine
        apart = self._ranks or (engine is not None and engine.several_processes)
        states = statistics_of(self._model) if apart else []
        exchange = None if self._engine is None else self._engine.exchange
        summed = gradients if exchange is None else [None] * len(gradients)
        listed = self.form.pack(summed, states)
        done = sum(g is not None for g in summed) if weighed else 0
        value, *rest = (_times(x, count) for x in (value, *listed[done:]))
        *sums, counts = self._total([value, *listed[:done], *rest, count])
        means = [tf.math.divide_no_nan(x, tf.cast(counts, x.dtype)) for x in sums]
        whole, averages = self.form.unpack(means[1:], summed, states)
        for state, mean in zip(states, averages, strict=True):
            state.assign(mean)
        if exchange is not None:
            worth = tf.math.divide_no_nan(1.0 if weighed else count, counts)
            whole = self._exchanged(exchange, gradients, worth)
        return means[0], whole

    def _exchanged(
        self, exchange: PartsExchange, gradients: list[Any], worth: tf.Tensor
    ) -> list[Any]:
        """Return the gradients that all parts step on. worth: what this part's gradients count for,
        of 1 in all."""
        assert self._engine is not None
        mine = worth * self._engine.parts
        weighed = [None if g is None else _times(g, mine) for g in gradients]
        return exchange.present(self._model.trainable_variables, weighed)

    def _count(self, batch: Batch) -> tf.Tensor:
        if self._weight is None:
            return count_of(batch)
        return tf.cast(tf.reshape(self._weight(*batch), []), tf.float32)


def _times(x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """x * count; exactly 0 where the count is 0, whatever x is."""
    return tf.math.multiply_no_nan(x, tf.cast(count, x.dtype))


def process_step(
    local: LocalStep,
    start: Callable[[Batch], None],
    between: Callable[[], None] | None = None,
    totals: Totals | None = None,
) -> Step:
    """The step of a process with one part. start: what comes before the first; between: before
    each."""
    compiled = Compiled(local.on_share)

    def call(batch: Batch) -> tf.Tensor:
        if between is not None:
            between()
        total = 0 if totals is None else totals.of(batch)
        return compiled(tf.constant(total), *_tensors(batch))

    return _started(call, start)


def replica_step(
    local: LocalStep,
    strategy: tf.distribute.Strategy,
    start: Callable[[Batch], None],
    totals: Totals,
) -> Step:
    """The step of a process with several replicas. Its batch holds a share for each."""

    def run(*given: Any) -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(local.on_share, args=given))[0]

    compiled = Compiled(run)

    def call(batch: Batch) -> tf.Tensor:
        for x in tf.nest.flatten(batch):
            if not isinstance(x, tf.distribute.DistributedValues):
                raise ConfigurationError(
                    f"This batch is not distributed to the replicas. Received: {type(x).__name__} "
                    f"for {strategy.num_replicas_in_sync} replicas. Take the batches from "
                    "strategy.prepare(dataset)."
                )
        return compiled(tf.constant(totals.of(batch)), *batch)

    return _started(call, start)


def _started(call: Callable[[Batch], tf.Tensor], start: Callable[[Batch], None]) -> Step:
    fresh = True

    def step(*batch: Any) -> tf.Tensor:
        nonlocal fresh
        stall.stepped()
        with translated():
            if fresh:
                start(batch)
                fresh = False
            return call(batch)

    return step


def _tensors(batch: Batch) -> Batch:
    tensors: Batch = tf.nest.map_structure(tf.convert_to_tensor, batch)
    return tensors


def build(model: Any, optimizer: Any, batch: Batch) -> None:
    """Make the variables that Keras would make during the first step. A batch dealt to replicas
    shows its first share."""
    build_model(model, batch)
    if not optimizer.built:
        optimizer.build(model.trainable_variables)


def build_model(model: Any, batch: Batch) -> None:
    """The same of the model alone."""
    inputs, _ = split(batch)
    if isinstance(model, keras.Layer) and not model.built:
        forward(model, tf.nest.map_structure(_first, inputs), training=False)
    if not model.trainable_variables:
        raise ConfigurationError(
            f"The model has no trainable variables. Received: {type(model).__name__} with no "
            "trainable variable. Build it with layers, or set trainable=True on some."
        )


def agree(model: Any, optimizer: Any, communicator: Communicator) -> None:
    """Compare the ranks' variables, then take rank 0's values: weights, running statistics and
    the optimizer's state."""
    if communicator.world_size == 1:
        return
    variables = _variables(model, optimizer)
    check_same(communicator.all_gather_object([_layout(v) for v in variables]))
    numbers = [v for v in variables if tf.as_dtype(v.dtype) != tf.string]
    values = communicator.broadcast([tf.convert_to_tensor(v) for v in numbers])
    if communicator.rank != 0:
        for variable, value in zip(numbers, values, strict=True):
            variable.assign(value)


def _variables(model: Any, optimizer: Any) -> list[Any]:
    if isinstance(model, keras.Layer):
        return [*model.weights, *seeds_of(model), *optimizer.variables]
    return [*model.variables, *optimizer.variables]


def _layout(variable: Any) -> tuple[str, tuple[int, ...], str]:
    name = unnumbered(variable.path) if isinstance(variable, keras.Variable) else variable.name
    return name, tuple(int(size) for size in variable.shape), tf.as_dtype(variable.dtype).name


def _first(x: Any) -> Any:
    return x.values[0] if isinstance(x, tf.distribute.DistributedValues) else x
