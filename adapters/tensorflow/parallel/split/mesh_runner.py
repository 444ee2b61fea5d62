"""Runs Keras's own steps on a mesh, on global batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import tensorflow as tf

from dream.adapters.keras import private, recompute
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.optimizer import optimizers_of
from dream.adapters.keras.step import MicroBatches
from dream.adapters.tensorflow.parallel.split import updating
from dream.adapters.tensorflow.parallel.split.compiled import compiled
from dream.adapters.tensorflow.parallel.split.in_micros import in_micros
from dream.adapters.tensorflow.parallel.split.keras_fit import Kind
from dream.adapters.tensorflow.parallel.split.onto import Onto

_STEPS = {"train": "train_step", "test": "test_step", "predict": "predict_step"}


@final
class MeshRunner:
    """The runner of a strategy on a mesh."""

    def __init__(self, onto: Onto, engine: Engine) -> None:
        self._onto = onto
        self._engine = engine

    def optimizer(self, optimizer: Any) -> Any:
        return updating.take(optimizer, self._onto, self._engine.knobs)

    def function(self, model: Any, kind: Kind) -> Callable[[Any, bool], Any]:
        cuts = kind == "train" and self._engine.knobs.accumulates
        make = self._in_micros if cuts else self._at_once
        steps = {one_length: make(model, kind, one_length) for one_length in (True, False)}
        fresh = True

        def run(batch: Any, one_length: bool) -> Any:
            nonlocal fresh
            if fresh:
                self._onto.together.compare(batch)
                self._lay_out(model, batch, kind)
                fresh = False
            return steps[one_length](batch)

        return run

    def _at_once(self, model: Any, kind: Kind, one_length: bool) -> Callable[..., Any]:
        return compiled(getattr(model, _STEPS[kind]), self._onto, kind, one_length=one_length)

    def _in_micros(self, model: Any, _kind: Kind, one_length: bool) -> Callable[..., Any]:
        """Keras's own step of training."""
        micro = MicroBatches(model, self._engine)

        def part(batch: Any, share: Any, rows: Any) -> list[Any]:
            found = micro.gradients(batch, share, rows, known=one_length)
            return [updating.laid(g, self._onto) for g in found]

        def finish(*sums: Any) -> Any:
            update = micro.update(sums)
            update.optimizer.apply(update.gradients, update.variables)
            return model.get_metrics_result()

        most = self._engine.knobs.accumulate
        return in_micros(part, finish, self._onto, most, one_length=one_length)

    def _lay_out(self, model: Any, batch: Any, kind: Kind) -> None:
        """Make all that a step of this kind uses, and put it onto the mesh."""
        example = private.tree.map_structure(_tensor, batch)
        with self._onto.making():
            if kind != "predict":
                private.build_but_optimizer(model, private.symbolic(example))
            elif not model.built:
                model.predict_step(example)
        self._onto.model(model)
        recompute.adopt(model, self._engine)
        self._onto.metrics(model)
        for optimizer in optimizers_of(model) if kind == "train" else ():
            self._onto.optimizer(optimizer, model.trainable_variables)


def _tensor(x: Any) -> Any:
    return None if x is None else tf.convert_to_tensor(x)
