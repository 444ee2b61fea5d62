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
from dream.adapters.tensorflow.split.parts import Judge, Parts

Weight = Callable[..., Any]


@final
class Stepping:
    """Trains one model.

    microbatches: of each row; microbatches_given: whether the user asked for so many.
    """

    def __init__(
        self,
        parts: Parts,
        microbatches: int,
        clip_norm: float | None,
        *,
        microbatches_given: bool,
    ) -> None:
        self.parts = parts
        self._count = microbatches * parts.copies
        self._clip_norm = clip_norm
        self._given = microbatches_given
        self._judges: dict[int, tuple[Any, Any]] = {}
        self._updates: dict[int, tuple[Any, Any]] = {}
        if self._count > 1:
            _check_statistics(parts.model)

    def train(
        self, x: Any, rest: Any, judge: Judge, optimizer: Any, weight: Weight | None = None
    ) -> tuple[Any, Any]:
        """(mean loss over the batch, the model's outputs). rest: what the loss and the weight
        are taken of, cut as x is; None in it stays."""
        samples = int(private.tree.flatten(x)[0].shape[0])
        if self._given and not self._judges and samples < self._count:
            raise ConfigurationError(
                "A batch has fewer samples than microbatches. Received: batch size "
                f"{samples}, microbatches={self._count} over {self.parts.copies} rows. Ask "
                "for fewer, or take larger batches."
            )
        count = min(samples, self._count)
        inputs, others = _cut(x, samples, count), _cut(rest, samples, count)
        fractions = _fractions(others, samples, weight)
        keep = [i for i, fraction in enumerate(fractions) if fraction]
        with translated():
            value, gradients, outputs = self.parts.gradients(
                [inputs[i] for i in keep], [others[i] for i in keep],
                [fractions[i] for i in keep], self._judge(judge),
            )  # fmt: skip
            for most in (self._clip_norm, self._clips(optimizer)):
                if most is not None:
                    gradients = self.parts.limited(gradients, most)
            self._update(optimizer)(gradients)
        self.parts.spread()
        return value, outputs

    def _clips(self, optimizer: Any) -> float | None:
        """What Keras would clip by, where it would take the norm of what is here for the whole."""
        return None if self.parts.alone else optimizer.global_clipnorm

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
        _check_scale(optimizer)
        variables = self.parts.trained
        self.parts.settle(optimizer)

        @tf.function  # type: ignore[untyped-decorator]
        def update(gradients: Sequence[Any]) -> None:
            if variables:
                type(optimizer).apply(optimizer, list(gradients), variables)
            else:
                optimizer.iterations.assign_add(1)

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


def _check_scale(optimizer: Any) -> None:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise Unsupported(
            "The loss of a model in parts is not scaled. Received: LossScaleOptimizer. Use its "
            "inner optimizer with mixed_bfloat16 or float32, or 'mirrored', which scales it."
        )


def _check_statistics(model: Any) -> None:
    for layer in private.layers_of(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            raise Unsupported(
                "A microbatch is normalised by itself, which is not what one device does. "
                f"Received: {layer.name!r} (BatchNormalization) with several microbatches. Use "
                "microbatches=1, LayerNormalization, or 'sharded'."
            )
