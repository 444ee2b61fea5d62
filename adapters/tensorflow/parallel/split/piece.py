"""A part of a model on its device: what it computes forward, and back again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import keras
import tensorflow as tf

from dream.adapters.tensorflow.parallel.split.cutting import Part

Values = dict[int, Any]
"""Tensors by the numbers that parts know them by."""


@final
class Piece:
    """A part in one row of the mesh.

    copies: by the id of a Keras variable this row's own; empty where the variables themselves are
    this row's.
    """

    def __init__(self, part: Part, device: str, copies: Mapping[int, tf.Variable]) -> None:
        self.part = part
        self.device = device
        self._copies = copies
        self.variables = [
            v.value if not copies else copies[id(v)] for v in part.model.trainable_variables
        ]
        self.gradients: list[Any] = [None] * len(self.variables)
        self._call = tf.function(self._train, reduce_retracing=True, jit_compile=False)
        self._under_way: dict[int, tuple[Any, list[Any], list[Any], Any]] = {}

    def forward(self, microbatch: int, values: Values) -> None:
        """Compute what the part gives, and remember how, for `backward`."""
        with tf.device(self.device):
            taken = [tf.identity(values[t]) for t in self.part.takes]
            with tf.GradientTape() as tape:
                tape.watch([x for x in taken if x.dtype.is_floating])
                given, penalty = self._call(*taken)
        values.update(zip(self.part.gives, given, strict=True))
        self._under_way[microbatch] = tape, taken, given, penalty

    def backward(self, microbatch: int, slopes: Values, fraction: float, lock: Any) -> Any:
        """From the loss's gradient by what the part gave, that by what it took, and by its
        variables, which add up over microbatches. Returns the penalties of its layers."""
        tape, taken, given, penalty = self._under_way.pop(microbatch)
        outputs = [
            (y, slopes[t]) for y, t in zip(given, self.part.gives, strict=True) if t in slopes
        ]
        with tf.device(self.device):
            targets = [y for y, _ in outputs] + [penalty]
            seeds = [s for _, s in outputs] + [tf.constant(fraction, penalty.dtype)]
            sources = [x for x in taken if x.dtype.is_floating]
            found = tape.gradient(targets, [*sources, *self.variables], seeds)
            for index, gradient in enumerate(found[len(sources) :]):
                self._add(index, gradient)
        by_input = iter(found[: len(sources)])
        for t, x in zip(self.part.takes, taken, strict=True):
            slope = next(by_input) if x.dtype.is_floating else None
            if slope is not None:
                with lock:  # another branch may add its own
                    slopes[t] = slopes[t] + slope if t in slopes else slope
        return penalty * fraction

    def _add(self, index: int, gradient: Any) -> None:
        if gradient is not None:
            gradient = tf.convert_to_tensor(gradient)
            before = self.gradients[index]
            self.gradients[index] = gradient if before is None else before + gradient

    def _train(self, *taken: Any) -> tuple[list[Any], Any]:
        with tf.device(self.device):
            given, losses = self._run(taken)
            penalty = tf.add_n([tf.cast(x, tf.float32) for x in losses]) if losses else tf.zeros(())
        return given, penalty

    def _run(self, taken: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        model = self.part.model
        if not self._copies:
            return listed(model(list(taken), training=True)), list(model.losses)
        mapping = [(v, self._copies[id(v)]) for v in model.variables]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            given, losses = listed(model(list(taken), training=True)), list(model.losses)
        for variable in model.non_trainable_variables:
            self._copies[id(variable)].assign(scope.get_current_value(variable))
        return given, losses


def predict(part: Part, device: str, values: Values) -> None:
    """What the part gives in evaluation."""
    with tf.device(device):
        given = listed(part.model([values[t] for t in part.takes], training=False))
    values.update(zip(part.gives, given, strict=True))


def listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]
