"""The steps of one model in parts: microbatches, their weights, and the update."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.keras import private
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.parallel.split.parts import Judge, Parts
from dream.update.update import Knobs

Weight = Callable[..., Any]


@final
class Stepping:
    """Trains one model.

    microbatches: of each row; microbatches_given: whether the user asked for so many.
    knobs: how an update is made. Under `accumulate` so many runs of microbatches make one.
    """

    def __init__(
        self,
        parts: Parts,
        microbatches: int,
        knobs: Knobs,
        *,
        microbatches_given: bool,
    ) -> None:
        self.parts = parts
        self._count = microbatches * parts.copies
        self._knobs = knobs
        self._given = microbatches_given
        self._judges: dict[int, tuple[Any, Any]] = {}
        self._updates: dict[int, tuple[Any, Any]] = {}
        if self._count > 1:
            _check_statistics(parts.model)

    def train(
        self, x: Any, rest: Any, judge: Judge, optimizer: Any, weight: Weight | None = None
    ) -> tuple[Any, Any]:
        """(mean loss over the batch, the model's outputs by run and microbatch). rest: what the
        loss and the weight are taken of, cut as x is; None in it stays."""
        samples = int(private.tree.flatten(x)[0].shape[0])
        runs = min(samples, self._knobs.accumulate)
        if self._given and not self._judges and samples < self._count * runs:
            raise ConfigurationError(
                "A batch has fewer samples than microbatches. Received: batch size "
                f"{samples}, microbatches={self._count} over {self.parts.copies} rows, accumulate="
                f"{self._knobs.accumulate}. Ask for fewer, or take larger batches."
            )
        bounds = _bounds(samples, runs, self._count)
        batch = [[_cut(whole, edges) for edges in bounds] for whole in (x, rest)]
        fractions = _fractions(batch[1], samples, weight)
        with translated():
            update = self._update(optimizer)
            scale = _scale(optimizer)
            losses, outputs = [], []
            for inputs, others, parts in zip(*batch, fractions, strict=True):
                keep = [i for i, fraction in enumerate(parts) if fraction]
                loss, given = self.parts.run(
                    [inputs[i] for i in keep], [others[i] for i in keep],
                    [parts[i] * scale for i in keep], self._judge(judge),
                )  # fmt: skip
                losses.append(loss)
                outputs.append(given)
            value, gradients = self.parts.summed(losses)
            gradients = self.parts.limited(gradients, optimizer, self._knobs, scale)
            update(gradients, _scales(optimizer) and self.parts.finite(gradients))
        self.parts.spread()
        return value / scale, outputs

    def _judge(self, judge: Judge) -> Callable[..., Any]:
        """The loss's value and slopes, compiled once for each loss."""
        if id(judge) in self._judges:
            return self._judges[id(judge)][1]  # type: ignore[no-any-return]

        @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
        def compute(outputs: Any, rest: Any, fraction: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(outputs)
                flat = dict(zip(self.parts.cut.outputs, outputs, strict=True))
                value = judge(self.parts.packed(flat), rest)
                value = _wide(value) * tf.cast(fraction, _wide(value).dtype)
            return value, tape.gradient(value, outputs)

        def call(outputs: Any, given: Any) -> Any:
            rest, fraction = given
            return compute(outputs, rest, tf.constant(fraction))

        self._judges[id(judge)] = judge, call
        return call

    def _update(self, optimizer: Any) -> Callable[[Sequence[Any], Any], None]:
        """Keras's own update, each variable's on the device where it lies, given whether all
        gradients are finite; asked where the loss is scaled."""
        if id(optimizer) in self._updates:
            return self._updates[id(optimizer)][1]  # type: ignore[no-any-return]
        variables = self.parts.trained
        self.parts.settle(optimizer)

        @tf.function  # type: ignore[untyped-decorator]
        def update(gradients: Sequence[Any], finite: Any) -> None:
            if _scales(optimizer):
                optimizer.check_finite = lambda _: finite
            type(optimizer).apply(optimizer, list(gradients), variables)
            if not variables:  # Keras does nothing then, and counts nothing
                counter = private.counter(getattr(optimizer, "inner_optimizer", optimizer))
                counter.assign_add(tf.cast(finite, counter.dtype) if _scales(optimizer) else 1)

        self._updates[id(optimizer)] = optimizer, update
        return self._updates[id(optimizer)][1]  # type: ignore[no-any-return]


def _bounds(samples: int, runs: int, count: int) -> list[list[slice]]:
    """By run, where a batch is cut into `count` microbatches, or fewer where there are fewer
    samples; their lengths alike but for one."""
    edges = [run * samples // runs for run in range(runs + 1)]
    found = []
    for first, last in itertools.pairwise(edges):
        within = np.linspace(first, last, min(last - first, count) + 1).round().astype(int)
        found.append([slice(int(a), int(b)) for a, b in itertools.pairwise(within)])
    return found


def _cut(batch: Any, runs: Sequence[slice]) -> list[Any]:
    return [private.tree.map_structure(partial(_run, run), batch) for run in runs]


def _run(samples: slice, x: Any) -> Any:
    return None if x is None else x[samples]


def _fractions(
    runs: Sequence[Sequence[Any]], samples: int, weight: Weight | None
) -> list[list[float]]:
    """What each microbatch's mean counts for in the mean over all."""
    if weight is None:
        counts = [[float(private.tree.flatten(m)[0].shape[0]) for m in run] for run in runs]
        return [[count / samples for count in run] for run in counts]
    counts = [[float(weight(*m)) for m in run] for run in runs]
    total = sum(map(sum, counts))
    return [[count / total if total else 0.0 for count in run] for run in counts]


def _scales(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def _scale(optimizer: Any) -> float:
    """What a loss is multiplied by on its way back. The optimizer is built."""
    return float(optimizer.scale_loss(tf.ones(())))


def _wide(value: Any) -> Any:
    """A loss in a type that its scale fits into."""
    return value if value.dtype.size >= 4 else tf.cast(value, tf.float32)


def _check_statistics(model: Any) -> None:
    for layer in private.layers_of(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            raise Unsupported(
                "A microbatch is normalised by itself, which is not what one device does. "
                f"Received: {layer.name!r} (BatchNormalization) with several microbatches. Use "
                "microbatches=1, LayerNormalization, or 'sharded'."
            )
