"""Runs Keras's own steps on a mesh, on global batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import tensorflow as tf

from dream.adapters.keras import private, start
from dream.adapters.tensorflow.split import updating
from dream.adapters.tensorflow.split.compiled import compiled
from dream.adapters.tensorflow.split.keras_fit import Kind
from dream.adapters.tensorflow.split.onto import Onto

_STEPS = {"train": "train_step", "test": "test_step", "predict": "predict_step"}


@final
class MeshRunner:
    """The runner of a strategy on a mesh."""

    def __init__(self, onto: Onto, clip_norm: float | None) -> None:
        self._onto = onto
        self._clip_norm = clip_norm

    def optimizer(self, optimizer: Any) -> Any:
        return updating.take(optimizer, self._onto, self._clip_norm)

    def function(self, model: Any, kind: Kind) -> Callable[[Any, bool], Any]:
        steps = {
            one_length: compiled(
                getattr(model, _STEPS[kind]), self._onto, kind, one_length=one_length
            )
            for one_length in (True, False)
        }
        fresh = True

        def run(batch: Any, one_length: bool) -> Any:
            nonlocal fresh
            if fresh:
                self._onto.together.compare(batch)
                self._lay_out(model, batch, kind)
                fresh = False
            return steps[one_length](batch)

        return run

    def _lay_out(self, model: Any, batch: Any, kind: Kind) -> None:
        """Make all that a step of this kind uses, and put it onto the mesh."""
        example = private.tree.map_structure(_tensor, batch)
        with self._onto.making():
            if kind != "predict":
                private.build_but_optimizer(model, private.symbolic(example))
            elif not model.built:
                model.predict_step(example)
        self._onto.model(model)
        self._onto.metrics(model)
        for optimizer in start.optimizers_of(model) if kind == "train" else ():
            self.optimizer(optimizer)
            self._onto.optimizer(optimizer, model.trainable_variables)


def _tensor(x: Any) -> Any:
    return None if x is None else tf.convert_to_tensor(x)
