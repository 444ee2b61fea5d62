"""Keras's loops over a model whose parts lie on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast, final

import keras
import tensorflow as tf

from dream.adapters.keras import private
from dream.adapters.keras.consistency import metric_states
from dream.adapters.keras.optimizer import adopt_clipping
from dream.adapters.keras.private import compiled_loss
from dream.adapters.tensorflow.parallel.split import afar, updating
from dream.adapters.tensorflow.parallel.split.across import Across, Ranks
from dream.adapters.tensorflow.parallel.split.keras_fit import Kind
from dream.adapters.tensorflow.parallel.split.parted_fit import (
    check_masks,
    check_own,
    first,
    judge_of,
)
from dream.adapters.tensorflow.parallel.split.parted_step import Stepping
from dream.adapters.tensorflow.tracing import Shaped
from dream.update.update import Knobs

Step = Callable[[Any, bool], Any]


@final
class AcrossRunner:
    """The runner of parts on several ranks. Predictions and logs are the same on all."""

    def __init__(self, steppings: Callable[[Any], Stepping], ranks: Ranks, knobs: Knobs) -> None:
        self._steppings = steppings
        self._knobs = knobs
        self._ranks = ranks

    def optimizer(self, optimizer: Any) -> Any:
        adopt_clipping(optimizer, self._knobs, by_norm=False)
        return updating.refuse_by_hand(optimizer)

    def function(self, model: Any, kind: Kind) -> Callable[[Any, bool], Any]:
        check_own(model, f"{kind}_step")
        steps = {"train": self._train, "test": self._test, "predict": self._predict}
        step = steps[kind](model)
        fresh = True

        def run(batch: Any, one_length: bool) -> Any:
            nonlocal fresh
            self._ranks.together.step(kind)
            if fresh:
                self._ranks.together.compare(batch)
                if kind != "predict":
                    with afar.only_shapes():
                        private.build_but_optimizer(model, private.symbolic(batch))
                fresh = False
            return step(batch, one_length)

        return run

    def _parts(self, model: Any) -> Across:
        return cast(Across, self._steppings(model).parts)

    def _train(self, model: Any) -> Step:
        judge = judge_of(model)
        told = Shaped(partial(_tell, model))

        def step(batch: Any, one_length: bool) -> Any:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            stepping = self._steppings(model)
            check_masks(model)
            loss, outputs = stepping.train(x, (y, weight), judge, model.optimizer)
            parts = self._parts(model)
            whole = parts.collected(outputs)
            if whole is not None:
                joined = [tf.concat(found, 0) for found in zip(*whole, strict=True)]
                flat = dict(zip(parts.cut.outputs, joined, strict=True))
                told(one_length, x, y, parts.packed(flat), weight, loss)
            self._take(model, parts.teller)
            return model.get_metrics_result()

        return step

    def _take(self, model: Any, teller: int) -> None:
        """What the teller's metrics have counted, on every rank."""
        states = metric_states(model)
        talk = self._ranks.everyone
        values = talk.broadcast([tf.convert_to_tensor(v.value) for v in states], teller)
        if talk.rank != teller:
            for variable, value in zip(states, values, strict=True):
                variable.assign(value)

    def _test(self, model: Any) -> Step:
        def tell(x: Any, y: Any, prediction: Any, weight: Any, penalty: Any) -> Any:
            own = compiled_loss(model)(y, prediction, weight)
            return _tell(model, x, y, prediction, weight, own + penalty, again=False)

        told = Shaped(tell)

        def step(batch: Any, one_length: bool) -> Any:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            prediction, penalty = self._parts(model).forward(x)
            return told(one_length, x, y, prediction, weight, penalty)

        return step

    def _predict(self, model: Any) -> Step:
        def step(batch: Any, _one_length: bool) -> Any:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            return self._parts(model).forward(x)[0]

        return step


def _tell(
    model: Any, x: Any, y: Any, prediction: Any, weight: Any, loss: Any, again: bool = True
) -> Any:
    """Have the metrics count a whole batch. again: whether the outputs' own losses are still to
    be counted."""
    if again and private.output_losses(model):
        compiled_loss(model)(y, prediction, weight)
    private.loss_tracker(model).update_state(loss, sample_weight=tf.shape(first(x))[0])
    return model.compute_metrics(x, y, prediction, sample_weight=weight)
