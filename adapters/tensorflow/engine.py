"""Keras's steps on TensorFlow, wherever the replicas are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from typing import Any

import keras
import tensorflow as tf

from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.forward import unweighed
from dream.adapters.keras.randomness.draws import ShareRows
from dream.adapters.keras.update.auto_recompute import Chooser
from dream.adapters.tensorflow import private
from dream.adapters.tensorflow.errors import refused_where, translated
from dream.adapters.tensorflow.keras import slices
from dream.adapters.tensorflow.keras.auto_recompute import TracedChooser
from dream.adapters.tensorflow.keras.draws import GraphRows
from dream.adapters.tensorflow.loss import Total
from dream.data.alike import other_batches
from dream.strategies.spec import Framework

DIFFER = "ranks read different batches"


class TensorFlowEngine(Engine):
    """Keras's steps in TensorFlow; where the parts are, and who adds up, is left open."""

    chooses = True
    _batch: int | None = None

    @property
    def framework(self) -> Framework:
        return "tensorflow"

    def dense(self, gradients: Sequence[Any], optimizer: Any) -> list[Any]:
        return slices.dense(gradients, optimizer)

    def weigh(self, tensors: Sequence[Any], weight: Any) -> list[Any]:
        return [slices.times(t, weight) for t in tensors]

    def keep(self, share: BatchShare, tensors: Sequence[Any]) -> list[Any]:
        if share.equal is not None:  # where one part has samples, all have
            return list(tensors)
        there = share.count > 0
        return [tf.where(there, t, tf.zeros_like(t)) for t in tensors]

    def copies(self, variables: Sequence[Any]) -> list[Any]:
        return [tf.identity(tf.convert_to_tensor(v.value)) for v in variables]

    def rows(self, batch: Any) -> Any:
        return rows_of(batch)

    def rows_of(self, share: BatchShare) -> ShareRows:
        return GraphRows(share, tf.constant(0), self.parts)

    def micros(self, rows: Any) -> Any:
        return tf.clip_by_value(rows, 1, self.update_options.micros)

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
        return bool(tf.is_tensor(x)) and x.dtype.is_floating

    def recompute(
        self, run: Callable[..., Sequence[Any]], tensors: Sequence[Any], layers: Sequence[Any]
    ) -> Sequence[Any]:
        del layers
        return recomputed(run, tensors)

    def chooser(self, model: Any) -> Chooser:
        budget = self.update_options.memory_budget
        assert budget is not None  # refused else as the block is opened
        return TracedChooser(model, budget, self._most_rows)

    def note_batch(self, data: Any, size: int | None) -> None:
        known = private.batch_of(data) if isinstance(data, tf.data.Dataset) else None
        self._batch = size or known

    def _most_rows(self) -> int | None:
        """Return the samples that a part calls a model on at a time, where they are known."""
        if self._batch is None:
            return None
        division = self.division
        rows = max(len(division.rows(self._batch, part)) for part in range(self.parts))
        if self.pace is not None:  # shares that change may grow
            rows = self._batch
        return -(-rows // self.update_options.micros)

    def example(self, source: Arrays | Batches) -> Any:
        return example(source)

    def looping(self) -> AbstractContextManager[Any]:
        return explained()

    def after(self, batch: Any) -> AbstractContextManager[Any]:
        """In a graph what needs no batch is done before the data is known to have ended."""
        waiting: AbstractContextManager[Any] = tf.control_dependencies(
            [t for t in tf.nest.flatten(batch) if tf.is_tensor(t)][:1]
        )
        return waiting

    def apart(self, function: Callable[[], Any]) -> Any:
        """In a thread of its own: no tape records in tf.init_scope."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(copy_context().run, function).result()

    def rehearse(self, step: Callable[[Any], None], batch: Any) -> None:
        specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), batch)
        tf.function(self._run(step), autograph=False).get_concrete_function(specs)

    def _run(self, step: Callable[[Any], None]) -> Callable[[Any], Any]:
        """Return a function that takes a step on every part that is here."""
        return step

    def of_any_length(self, batch: Any) -> Any:
        return tf.nest.map_structure(of_any_length, batch)

    def same_batch(self, share: BatchShare, digests: Any, tensors: Sequence[Any]) -> list[Any]:
        """Only the tensors wait for it: Keras counts a step without a batch at the data's end."""
        alike = tf.reduce_all(tf.equal(digests, digests[0]))
        told = tf.cast(digests, tf.int32)  # of floats TensorFlow would make a branch, to copy them
        known = tf.debugging.Assert(alike, [DIFFER, told], summarize=self.parts)
        with tf.control_dependencies([known] if known is not None else []):  # else it ran already
            return [tf.identity(t) for t in tensors]

    def applying(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def take_over(self, model: Any) -> None:
        """Nothing else has hold of a Keras model."""


_ROUNDING = 1e-6
"""How far apart, in squares, gradients of one batch may be on two ranks: by rounding alone."""


def common(gradients: Sequence[Any], total: Total, count: int, received: str) -> list[Any]:
    """Return the mean of gradients that so many processes have each of a whole batch; refused where
    they differ. total: sums over the processes."""

    def mean(mine: list[Any]) -> list[Any]:
        whole = [t / tf.cast(count, t.dtype) for t in total(mine)]
        apart = _squares([m - w for m, w in zip(mine, whole, strict=True)])
        refused_where(apart > _ROUNDING * _squares(whole), unweighed(received))
        return whole

    return slices.mapped(mean, gradients)


def _squares(tensors: Sequence[Any]) -> Any:
    return tf.add_n([tf.reduce_sum(tf.square(tf.cast(t, tf.float32))) for t in tensors])


def example(source: Arrays | Batches) -> Any:
    if isinstance(source, Arrays):
        return source.inputs
    return source.adapter.get_tf_dataset().element_spec


def recomputed(run: Callable[..., Sequence[Any]], tensors: Sequence[Any]) -> Sequence[Any]:
    """Return run(*tensors), whose values backward computes again.

    tf.recompute_grad is wrong by chance: it gives its gradients through one IdentityN, by which
    Grappler finds that a layer's weights are read before they are updated, drops that order as
    needless, and then the IdentityN; what backward computes again may then be of the weights of the
    next step. Here each gradient comes after all of them.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def again(*inputs: Any) -> Any:
        def back(*gradients: Any, variables: Sequence[Any] = ()) -> Any:
            with tf.GradientTape() as tape:
                nothing = _nothing(gradients)
                given = [x + tf.cast(nothing, x.dtype) for x in inputs]
                tape.watch(given)
                outputs = run(*given)
            found = tape.gradient(
                outputs, [*given, *variables], gradients,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )  # fmt: skip
            with tf.control_dependencies(tf.nest.flatten(found, expand_composites=True)):
                found = [tf.identity(gradient) for gradient in found]
            return found[: len(given)], found[len(given) :]

        with private.unrecorded():
            return run(*inputs), back

    result: Sequence[Any] = again(*tensors)
    return result


def _nothing(gradients: Sequence[Any]) -> Any:
    """0, which is there once a gradient is: so that nothing is computed again before."""
    gradient = next((g for g in gradients if g.dtype.is_floating), None)
    if gradient is None:
        return tf.zeros(())
    one = tf.cast(tf.reduce_max(tf.reshape(gradient, [-1])[:1]), tf.bool)
    return tf.where(tf.equal(one, one), 0.0, float("nan"))


@contextmanager
def explained() -> Iterator[None]:
    """TensorFlow's errors from a loop, in dream's words."""
    try:
        with translated():
            yield
    except tf.errors.InvalidArgumentError as error:
        if DIFFER not in str(error):
            raise
        raise other_batches(_digests_in(str(error))) from error


def _digests_in(said: str) -> list[int]:
    """Return each rank's digest, which an assertion of `DIFFER` tells."""
    found = re.search(rf"{DIFFER}\D*([\d, ]+)", said)
    return [int(each) for each in re.findall(r"\d+", found[1])] if found else []


def of_any_length(rows: tf.Tensor) -> tf.Tensor:
    """Return the same of a length that the graph does not know: parts with and without short
    batches then trace the same step, and Keras counts their batches alike."""
    return tf.compat.v1.placeholder_with_default(rows, [None, *rows.shape[1:]])


def rows_of(batch: Any) -> tf.Tensor:
    """How many samples a batch has: the length of its first tensor; a constant if it is known."""
    first = next(t for t in tf.nest.flatten(batch) if t is not None)
    shape = tf.TensorShape(first.shape)
    known = shape[0] if shape.rank else None
    return tf.shape(first)[0] if known is None else tf.constant(known)


def ratio(some: tf.Tensor, all_of: tf.Tensor) -> tf.Tensor:
    """some / all_of as float64; 1 where there is nothing."""
    one = tf.constant(1.0, tf.float64)
    return tf.where(all_of > 0, tf.cast(some, tf.float64) / tf.cast(all_of, tf.float64), one)


def fold(
    times: tf.Tensor, compute: Callable[[tf.Tensor], list[Any]], like: Sequence[Any]
) -> list[tf.Tensor]:
    """The sums of what `compute` gives for 0 to times - 1. like: tensors of their shapes."""

    def go_on(index: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
        return index < times

    def add(index: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
        found = compute(index)
        return index + 1, *(s + tf.cast(f, s.dtype) for s, f in zip(sums, found, strict=True))

    start = (tf.constant(0), *(tf.zeros_like(tf.convert_to_tensor(t)) for t in like))
    _, *sums = tf.while_loop(go_on, add, start, parallel_iterations=1)
    return list(sums)


def global_moments(
    x: tf.Tensor, axes: Sequence[int], mask: Any, total: Total, present: Any, worth: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Each of shape (channels,).

    mask: which places count, of x's shape without its last dim; None for all. total: the sum over
    the parts. present: 0 where this part's samples do not count. worth: what gradients of this
    part are multiplied by later; those of others are divided by it here.
    """
    present = tf.cast(tf.cast(present, tf.float32) > 0, x.dtype)
    weights = present if mask is None else present * tf.cast(mask, x.dtype)[..., None]
    spare = 0.0 if mask is None else keras.backend.epsilon()
    along = [1 if i in axes else -1 for i in range(x.shape.rank)]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(x: tf.Tensor) -> Any:
        count, first, second = _sums(x, weights, axes, along, masked=mask is not None)
        (sums,) = total([tf.concat([count[None], first, second], 0)])
        number = sums[0] + spare
        first, second = tf.split(sums[1:], 2)
        mean = first / number
        spread = second - 2.0 * mean * first + sums[0] * mean * mean
        variance = tf.maximum(spread / number, 0.0)
        centre, size = tf.cast(mean, x.dtype), tf.cast(number, x.dtype)

        def back(by_mean: tf.Tensor, by_variance: tf.Tensor) -> tf.Tensor:
            mine = tf.concat([by_mean, by_variance], 0)
            mine = tf.where(present > 0, mine, tf.zeros_like(mine))
            scale = tf.cast(worth, x.dtype)
            (theirs,) = total([mine * scale])
            shift, stretch = tf.split(tf.math.divide_no_nan(theirs, scale), 2)
            spread = (x - tf.reshape(centre, along)) * tf.reshape(2.0 * stretch, along)
            return weights * (tf.reshape(shift, along) + spread) / size

        return (centre, tf.cast(variance, x.dtype)), back

    mean, variance = run(x)
    return mean, variance


def _sums(
    x: tf.Tensor, weights: tf.Tensor, axes: Sequence[int], along: list[int], *, masked: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(number, sum, sum of squares) of this part by channel, in float64. About the part's own
    mean first, which keeps the digits of small spreads."""
    if masked:
        number = tf.reduce_sum(weights)
    else:
        number = weights * tf.cast(tf.reduce_prod(tf.gather(tf.shape(x), list(axes))), x.dtype)
    mean = tf.math.divide_no_nan(tf.reduce_sum(x * weights, axes), number)
    spread = tf.reduce_sum(weights * tf.square(x - tf.reshape(mean, along)), axes)
    count, mean, spread = (tf.cast(t, tf.float64) for t in (number, mean, spread))
    return count, count * mean, spread + count * mean * mean
