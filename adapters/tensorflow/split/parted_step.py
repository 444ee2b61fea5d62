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
from dream.adapters.tensorflow.split import clipping
from dream.adapters.tensorflow.split.layouts import belongs_to
from dream.adapters.tensorflow.split.parted import Parted, move

Judge = Callable[[Any, Any], Any]
"""From the model's output and what belongs to a microbatch its loss, a mean over its samples."""
Weight = Callable[..., Any]


@final
class Stepping:
    """Trains one model.

    microbatches: of each row; microbatches_given: whether the user asked for so many.
    """

    def __init__(
        self,
        parted: Parted,
        microbatches: int,
        clip_norm: float | None,
        *,
        microbatches_given: bool,
    ) -> None:
        self.parted = parted
        self._count = microbatches * len(parted.rows)
        self._clip_norm = clip_norm
        self._given = microbatches_given
        self._judges: dict[int, tuple[Any, Any]] = {}
        self._updates: dict[int, tuple[Any, Any]] = {}
        if self._count > 1:
            _check_statistics(parted.model)

    def train(
        self, x: Any, rest: Any, judge: Judge, optimizer: Any, weight: Weight | None = None
    ) -> tuple[Any, Any]:
        """(mean loss over the batch, the model's outputs). rest: what the loss and the weight
        are taken of, cut as x is; None in it stays."""
        samples = int(private.tree.flatten(x)[0].shape[0])
        if self._given and not self._judges and samples < self._count:
            raise ConfigurationError(
                "A batch has fewer samples than microbatches. Received: batch size "
                f"{samples}, microbatches={self._count} over {len(self.parted.rows)} rows. Ask "
                "for fewer, or take larger batches."
            )
        count = min(samples, self._count)
        inputs, others = _cut(x, samples, count), _cut(rest, samples, count)
        fractions = _fractions(others, samples, weight)
        keep = [i for i, fraction in enumerate(fractions) if fraction]
        with translated():
            value, gradients, outputs = self.parted.gradients(
                [inputs[i] for i in keep], [others[i] for i in keep],
                [fractions[i] for i in keep], self._judge(judge),
            )  # fmt: skip
            self._update(optimizer)(gradients)
        self.parted.spread()
        return value, outputs

    def _judge(self, judge: Judge) -> Callable[..., Any]:
        """The loss's value and slopes, compiled once for each loss."""
        if id(judge) in self._judges:
            return self._judges[id(judge)][1]  # type: ignore[no-any-return]

        @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
        def compute(outputs: Any, rest: Any, fraction: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(outputs)
                flat = dict(zip(self.parted.cut.outputs, outputs, strict=True))
                value = judge(self.parted.packed(flat), rest)
                value = value * tf.cast(fraction, value.dtype)
            return value, tape.gradient(value, outputs)

        def call(outputs: Any, given: Any) -> Any:
            rest, fraction = given
            return compute(outputs, rest, tf.constant(fraction))

        self._judges[id(judge)] = judge, call
        return call

    def _update(self, optimizer: Any) -> Callable[[Sequence[Any]], None]:
        """Keras's own update, each variable's on the device where it lies."""
        if id(optimizer) in self._updates:
            return self._updates[id(optimizer)][1]  # type: ignore[no-any-return]
        variables = self.parted.model.trainable_variables
        if not optimizer.built:
            optimizer.build(variables)
        for state in optimizer.variables:
            owner = belongs_to(state.name, state.shape, variables)
            move(state, "CPU:0" if owner is None else self.parted.homes[id(owner)])

        @tf.function  # type: ignore[untyped-decorator]
        def update(gradients: Sequence[Any]) -> None:
            if self._clip_norm is not None:
                gradients = clipping.clipped(gradients, self._clip_norm)
            type(optimizer).apply(optimizer, list(gradients), variables)

        self._updates[id(optimizer)] = optimizer, update
        return self._updates[id(optimizer)][1]  # type: ignore[no-any-return]


def _cut(batch: Any, samples: int, count: int) -> list[Any]:
    """A batch in runs, their lengths alike but for one."""
    bounds = np.linspace(0, samples, count + 1).round().astype(int)
    runs = [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
    return [private.tree.map_structure(partial(_run, run), batch) for run in runs]


def _run(samples: slice, x: Any) -> Any:
    return None if x is None else x[samples]


def _fractions(parts: Sequence[Any], samples: int, weight: Weight | None) -> list[float]:
    """What each microbatch's mean counts for in the mean over all."""
    if weight is None:
        counts = [float(private.tree.flatten(part)[0].shape[0]) for part in parts]
        return [count / samples for count in counts]
    counts = [float(weight(*part)) for part in parts]
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]


def _check_statistics(model: Any) -> None:
    for layer in private.layers_of(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            raise Unsupported(
                "A microbatch is normalised by itself, which is not what one device does. "
                f"Received: {layer.name!r} (BatchNormalization) with several microbatches. Use "
                "microbatches=1, LayerNormalization, or 'sharded'."
            )
