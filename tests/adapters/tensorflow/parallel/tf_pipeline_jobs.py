"""What processes do in the tests of pipelines and of layers on devices and ranks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from tf_split_models import (
    accumulating,
    alone,
    data,
    entered,
    files,
    fitted,
    loss,
    momentum,
    overflowing,
    predicted,
    short,
    stepped,
    told,
    weights,
    wide,
)

import dream
from dream.adapters.tensorflow.parallel.pipeline.microbatch_run import MicrobatchPlace


def devices_of(variables: Any) -> dict[str, str]:
    return {short(v): v.value.device[-5:] for v in variables}


def branches() -> Any:
    """Two branches that hang on nothing of one another, and a layer that joins them."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,))
    left = layers.Dense(8, name="left")(inputs)
    right = layers.Dense(8, name="right")(inputs)
    return keras.Model(inputs, layers.Dense(4, name="join")(left + right))


PLACE = {"left": 0, "right": 1, "join": 1}


def parts() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for schedule in ("gpipe", "1f1b", "interleaved"):
        with dream.strategy(
            "model_parallel", split="pipeline", devices=2, schedule=schedule, microbatches=3
        ):
            found[schedule] = weights(fitted(wide()))
    with dream.strategy(
        "model_parallel", split="pipeline", devices=2, stages=["fc2"], microbatches=4
    ) as strategy:
        model = fitted(wide())
        found["variables"] = devices_of(model.variables)
        found["slots"] = {v.name: v.value.device[-5:] for v in model.optimizer.variables}
        found["counted"] = counted(strategy)
        found["normalised"] = told(lambda: fitted(wide(layers.BatchNormalization(name="bn"))))
        found["hidden"] = told(lambda: fitted(Hidden()))
        found["twice"] = told(lambda: fitted(twice()))
        found["own loss"] = told(lambda: fitted(OwnLoss(wide().layers)))
        found["typo"] = told(lambda: fitted(branches()))
        found["ops"] = ops_by_device(strategy)
    with dream.strategy("model_parallel", split="pipeline", devices=2, microbatches=20):
        found["too many"] = told(lambda: fitted(wide()))
    with dream.strategy("model_parallel", split="pipeline", devices=2):
        found["one microbatch"] = weights(fitted(wide(layers.BatchNormalization())))
    with dream.strategy("model_parallel", split="pipeline", devices=2, balance="time"):
        model = fitted(slow())
        found["timed"] = devices_of(model.variables), weights(model)
    with dream.strategy("model_parallel", split="pipeline", devices=2):
        found["outputs"] = penalised()
        found["factor"] = weights(fitted(wide(), momentum(loss_scale_factor=64.0)))
    with dream.strategy("model_parallel", split="pipeline", devices=2, clip_norm=0.05):
        found["keras accumulates"] = weights(fitted(wide(), accumulating()))
    with dream.strategy("model_parallel", split="pipeline", devices=2, precision="O3"):
        found["halved"] = weights(fitted(wide()))
    with dream.strategy("hybrid", devices=2, data=2, model=1, recompute=True):
        found["copies"] = told(lambda: fitted(wide()))
    with dream.strategy("hybrid", devices=2, data=2, model=1):
        found["set between"] = set_between()
    with dream.strategy("model_parallel", split="layers", devices=2, place=PLACE):
        model = fitted(branches())
        found["layers"] = devices_of(model.variables), weights(model)
    with dream.strategy("model_parallel", split="layers", devices=2, place={"left": 2}):
        found["no device"] = told(lambda: fitted(branches()))
    found["equation"] = told(lambda: entered("hybrid", devices=2, data=2, model=2))
    with dream.strategy("single") as strategy:
        found["one"] = weights(fitted(wide()))
        found["one normalised"] = weights(fitted(wide(layers.BatchNormalization())))
        found["one outputs"] = penalised()
        found["one slow"] = weights(fitted(slow()))
        found["one set between"] = set_between()
        found["one branches"] = weights(fitted(branches()))
        found["one counted"] = counted(strategy)
    with dream.strategy("single", precision="O3"):
        found["one halved"] = weights(fitted(wide()))
    with dream.strategy("single", clip_norm=0.05):
        found["one keras accumulates"] = weights(fitted(wide(), accumulating()))
    return found


def counted(strategy: Any) -> list[np.ndarray]:
    """A mean over things that samples have unequal numbers of."""

    def judge(prediction: Any, target: Any) -> Any:
        each = keras.losses.sparse_categorical_crossentropy(target, prediction, from_logits=True)
        counts = keras.ops.cast(target, "float32")
        return keras.ops.sum(each * counts) / keras.ops.sum(counts)

    model, optimizer = strategy.prepare(wide(), momentum())
    step = strategy.train_step(
        model, judge, optimizer, weight=lambda _, y: tf.reduce_sum(tf.cast(y, tf.float32))
    )
    x, y = data()
    for begin in range(0, 61, 16):
        step(x[begin : begin + 16], y[begin : begin + 16])
    return weights(model)


def ops_by_device(strategy: Any) -> dict[str, list[str]]:
    """Where a stage's forward and backward multiplications run, as TensorFlow itself records."""
    model = wide()
    stepped(strategy, model)
    pipeline = strategy._adapter.pipeline(model)
    seen: dict[str, list[str]] = {}
    for placed in pipeline.placed[0]:
        assert not [g for g in placed.gradients if g is not None]  # used up by the step
        first = placed.stage.takes == pipeline.partition.inputs
        taken = [tf.ones((4, 8 if first else 64)) for _ in placed.stage.takes]
        given = placed.forward(0, taken, MicrobatchPlace(0, 4, 4, 1.0))
        by_taken, _ = placed.backward(0, [tf.ones_like(y) for y in given], 1.0)
        found = [*given, *by_taken, *(g for _, g in placed.summed())]
        seen[placed.device] = [x.device[-5:] for x in found if x is not None]
    return seen


def slow() -> Any:
    """Its first layer has few parameters and takes long; by parameters it is in one stage with
    the second."""
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [keras.Input((8,)), layers.Dense(4, activation=long, name="long"),
         layers.Dense(8, name="short"), layers.Dense(64, name="wide"), layers.Dense(4, name="head")]
    )  # fmt: skip


def long(x: Any) -> Any:
    large = keras.ops.ones((1500, 1500))
    return x + 0.0 * keras.ops.mean(keras.ops.matmul(large, large))


def set_between() -> tuple[list[np.ndarray], float]:
    """Weights that are set by hand between two fits count in all rows."""
    model = fitted(wide(), epochs=1)
    model.set_weights([0.5 * w for w in weights(model)])
    tested = model.evaluate(*data(), verbose=0)
    fitted(model, epochs=1)
    return weights(model), tested


class OwnLoss(keras.Sequential):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return 2 * super().compute_loss(*args, **kwargs)


class Hidden(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(4)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def twice() -> Any:
    dense = layers.Dense(8, name="again")
    inputs = keras.Input((8,))
    return keras.Model(inputs, layers.Dense(4, name="fc2")(dense(dense(inputs))))


def two() -> dict[str, Any]:
    """Two stages on two ranks."""
    found: dict[str, Any] = {}
    with dream.strategy("model_parallel", split="pipeline", stages=["fc2"]) as strategy:
        rank = strategy.topology.rank
        model = fitted(wide())
        found["weights"] = weights(model)
        found["here"] = [kind_of(v) for v in model.variables]
        found["slots"] = [kind_of(v) for v in model.optimizer.variables if v.shape.rank]
        stepping = wide()
        found["losses"] = stepped(strategy, stepping, momentum(global_clipnorm=0.05))
        found["clipped"] = weights(stepping)
        found["predicted"] = predicted(wide())
        found["penalised"] = penalised()
        found["files"] = files(strategy, model)
        found["accumulating"] = told(
            lambda: fitted(wide(), momentum(global_clipnorm=1.0, gradient_accumulation_steps=2))
        )
        found["overflowing"] = overflowing()
        found["by hand"] = told(lambda: momentum().apply([], []))
        found["alone"] = alone(model, rank)  # the last: the ranks differ from then on
    with dream.strategy("model_parallel", split="pipeline", balance="time"):
        found["timed"] = weights(fitted(wide()))
    with dream.strategy("model_parallel", split="layers", place={"left": 0, "right": 1, "join": 1}):
        placed = fitted(branches())
        found["layers"] = [kind_of(v) for v in placed.variables], weights(placed)
    return found


def four() -> dict[str, Any]:
    """Two rows of two stages."""
    found: dict[str, Any] = {}
    with dream.strategy("hybrid", data=2, model=2) as strategy:
        model = fitted(wide(), momentum(global_clipnorm=0.05))
        found["weights"] = weights(model)
        found["predicted"] = predicted(model)
        stepping = wide()
        found["losses"] = stepped(strategy, stepping)
        found["stepped"] = weights(stepping)
    return found


def kind_of(variable: Any) -> str:
    return type(variable.value).__name__


def penalised() -> dict[str, Any]:
    """Two outputs, of two ranks; layers with penalties on both."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,))
    hidden = layers.Dense(8, kernel_regularizer="l2", name="fc1")(inputs)
    kind = layers.Dense(4, kernel_regularizer="l2", name="fc2")(hidden)
    model = keras.Model(inputs, {"kind": kind, "again": hidden})
    model.compile(momentum(), {"kind": loss(), "again": "mse"}, metrics={"kind": ["accuracy"]})
    x, y = data()
    target = {"kind": y, "again": x}
    history = model.fit(x, target, batch_size=16, epochs=2, shuffle=False, verbose=0)
    tested = model.evaluate(x, target, batch_size=16, verbose=0, return_dict=True)
    return {"history": history.history, "tested": tested, "weights": weights(model)}


def one() -> dict[str, Any]:
    """The same on one device."""
    found: dict[str, Any] = {}
    with dream.strategy("single") as strategy:
        found["weights"] = weights(fitted(wide()))
        clipped = wide()
        found["losses"] = stepped(strategy, clipped, momentum(global_clipnorm=0.05))
        found["clipped"] = weights(clipped)
        stepping = wide()
        found["plain losses"] = stepped(strategy, stepping)
        found["predicted"] = predicted(wide())
        found["clipped by fit"] = weights(model := fitted(wide(), momentum(global_clipnorm=0.05)))
        found["predicted after"] = predicted(model)
        found["penalised"] = penalised()
        found["layers"] = weights(fitted(branches()))
        found["overflowing"] = overflowing()
    return found
