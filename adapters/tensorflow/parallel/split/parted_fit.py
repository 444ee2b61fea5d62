"""Keras's loops over a model in parts: the losses, metrics and logs of its own steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, cast, final

import keras
import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.keras import private
from dream.adapters.keras.optimizer import adopt_clipping
from dream.adapters.keras.private import compiled_loss
from dream.adapters.tensorflow.parallel.split.keras_fit import Kind
from dream.adapters.tensorflow.parallel.split.parted import Parted
from dream.adapters.tensorflow.parallel.split.parted_step import Stepping
from dream.adapters.tensorflow.tracing import Shaped
from dream.update.update import Knobs


@final
class PartedRunner:
    """The runner of a strategy that puts layers on devices."""

    def __init__(self, stepping: Callable[[Any], Stepping], knobs: Knobs) -> None:
        self._stepping = stepping
        self._knobs = knobs

    def optimizer(self, optimizer: Any) -> Any:
        """It is given global gradients."""
        adopt_clipping(optimizer, self._knobs)
        return optimizer

    def function(self, model: Any, kind: Kind) -> Callable[[Any, bool], Any]:
        if kind == "train":
            return self._train(model)
        step = Shaped(self._test(model) if kind == "test" else self._predict(model))
        return lambda batch, one_length: step(one_length, batch)

    def _predicted(self, model: Any, x: Any) -> Any:
        return cast(Parted, self._stepping(model).parts).predict(x)

    def _train(self, model: Any) -> Callable[[Any, bool], Any]:
        check_own(model, "train_step")

        judge = judge_of(model)

        def logs(x: Any, y: Any, prediction: Any, weight: Any, loss: Any) -> Any:
            if private.output_losses(model):
                compiled_loss(model)(y, prediction, weight)
            private.loss_tracker(model).update_state(loss, sample_weight=tf.shape(first(x))[0])
            return model.compute_metrics(x, y, prediction, sample_weight=weight)

        told = Shaped(logs)
        fresh = True

        def step(batch: Any, one_length: bool) -> Any:
            nonlocal fresh
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            if fresh:
                private.build(model, private.symbolic(batch))
                self._stepping(model)
                check_masks(model)
                fresh = False
            stepping = self._stepping(model)
            loss, outputs = stepping.train(x, (y, weight), judge, model.optimizer)
            whole = [tf.concat(parts, 0) for parts in zip(*chain(*outputs), strict=True)]
            flat = dict(zip(stepping.parts.cut.outputs, whole, strict=True))
            given = (x, y, stepping.parts.packed(flat), weight, loss)
            return told(one_length, *given)

        return step

    def _test(self, model: Any) -> Callable[[Any], Any]:
        check_own(model, "test_step")

        def step(batch: Any) -> Any:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            prediction = self._predicted(model, x)
            loss = model.compute_loss(x, y, prediction, weight, training=False)
            private.loss_tracker(model).update_state(loss, sample_weight=tf.shape(first(x))[0])
            return model.compute_metrics(x, y, prediction, sample_weight=weight)

        return _built_first(model, step)

    def _predict(self, model: Any) -> Callable[[Any], Any]:
        check_own(model, "predict_step")

        def step(batch: Any) -> Any:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            return self._predicted(model, x)

        return step


def _built_first(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(batch: Any) -> Any:
        with tf.init_scope():
            private.build(model, private.symbolic(batch))
        return step(batch)

    return call


def judge_of(model: Any) -> Callable[[Any, Any], Any]:
    """The loss that a model was compiled with, of (target, sample weight). Its metrics are told of
    the whole batch later."""

    def judge(prediction: Any, rest: Any) -> Any:
        y, weight = rest
        with keras.StatelessScope():
            return compiled_loss(model)(y, prediction, weight)

    return judge


def first(x: Any) -> Any:
    return next(t for t in private.tree.flatten(x) if t is not None)


def check_own(model: Any, name: str) -> None:
    if getattr(type(model), name) is not getattr(keras.Model, name):
        raise Unsupported(
            f"A model in parts takes Keras's own {name}. Received: {type(model).__name__}.{name}. "
            "Use strategy.train_step, or 'sharded', which runs a model's own step."
        )


def check_masks(model: Any) -> None:
    for output in model.outputs:
        if private.mask_of(output) is not None:
            raise Unsupported(
                "The predictions carry a mask, so the loss is the mean over what is unmasked, of "
                f"which microbatches hold unequal numbers. Received: {model.name!r} with a masked "
                "output. Use strategy.train_step with weight=, or drop the mask."
            )
