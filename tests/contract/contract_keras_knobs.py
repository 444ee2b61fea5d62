"""The knobs under fit and in a step. Accumulation changes no number, so there `single` runs without
it, and once with it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import keras
import numpy as np
from contract_case import EVERYWHERE, WITH_DREAM, Env, Figures, refusal
from contract_keras_kit import BATCH, CASES, SHORT, TF, adamw, arrays, compiled, loss, momentum, net
from contract_keras_kit import parameters as parameters_of
from contract_keras_names import fully
from contract_keras_objects import global_batches, judge, weighted, weights
from keras import layers

Run = Callable[[Any], Figures]


def _micro(env: Env, most: int, run: Run, **knobs: Any) -> Figures:
    """The figures of `run(strategy)` with micro-batches; of one device without, and as
    "accumulated" with them."""
    figures: Figures = {}
    if env.mode == "single":
        with env.block(knobs=knobs) as strategy:
            figures = run(strategy)
        keras.utils.set_random_seed(1)
    with env.block(knobs={"accumulate": most, **knobs}) as strategy:
        found = run(strategy)
    return {**figures, "accumulated": found["parameters"]} if figures else found


def _fit(optimizer: Any, samples: int = 61, *, epochs: int = 3) -> Figures:
    model = compiled(optimizer)
    history = model.fit(
        *arrays(samples), batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0
    ).history
    return {"parameters": parameters_of(model), "history": _listed(history)}


def _listed(history: Any) -> dict[str, Any]:
    return {name: np.array(values) for name, values in history.items()}


@CASES.add(*WITH_DREAM)
def accumulated_momentum(env: Env) -> Figures:
    return _micro(env, 4, lambda _: _fit(momentum()))


@CASES.add(*WITH_DREAM)
def accumulated_adamw_rank_without_sample(env: Env) -> Figures:
    return _micro(env, 3, lambda _: _fit(adamw(), 49))


@CASES.add(*WITH_DREAM)
def accumulated_outputs_and_weights(env: Env) -> Figures:
    """Two outputs with a loss each, sample weights and a penalty."""

    def run(_: Any) -> Figures:
        x, y = arrays(61)
        inputs = keras.Input((8,))
        body = layers.Dense(16, "tanh", kernel_regularizer=keras.regularizers.L2(1e-3))(inputs)
        model = keras.Model(inputs, [layers.Dense(4, name=n)(body) for n in ("left", "right")])
        model.compile(momentum(), [loss(), loss()], metrics=[["accuracy"], ["accuracy"]])
        weight = np.linspace(0.5, 1.5, 61, dtype=np.float32)
        history = model.fit(
            x, [y, 3 - y], sample_weight=[weight, weight], batch_size=BATCH, epochs=SHORT,
            shuffle=True, verbose=0,
        ).history  # fmt: skip
        return {"parameters": parameters_of(model), "history": _listed(history)}

    return _micro(env, 4, run)


@CASES.add(*WITH_DREAM)
def accumulated_twice(env: Env) -> Figures:
    """Keras's own accumulation keeps its meaning: the mean over steps."""
    copied = env.cell.strategy in ("mirrored", "data_parallel")
    if env.mode == "cell" and env.cell.processes < env.cell.replicas and copied:
        return {"left_out": "Keras's own accumulation of several devices is held by another case"}
    return _micro(env, 2, lambda _: _fit(momentum(gradient_accumulation_steps=2)))


@CASES.add(*WITH_DREAM)
def accumulated_and_clipped(env: Env) -> Figures:
    """In fit and in a step: the norm is that of all micro-batches' sum. The last batch of fit
    leaves a replica without a sample; that of the step has unequal micro-batches."""

    def run(strategy: Any) -> Figures:
        fitted = _fit(momentum(), 49)
        keras.utils.set_random_seed(1)
        stepped = _stepped(strategy, arrays(61), judge)["parameters"]
        by_step = {f"step.{name}": value for name, value in stepped.items()}
        return {**fitted, "parameters": fitted["parameters"] | by_step}

    return _micro(env, 4, run, clip_norm=0.05)


def _stepped(strategy: Any, data: Any, judged: Any, **options: Any) -> Figures:
    model, optimizer = strategy.prepare(net(), momentum())
    step = strategy.train_step(model, judged, optimizer, **options)
    values = [float(step(*batch)) for _ in range(3) for batch in global_batches(strategy, *data)]
    return {"parameters": parameters_of(model), "values": values}


@CASES.add(*WITH_DREAM)
def accumulated_step(env: Env) -> Figures:
    """The last batch's micro-batches are unequal."""
    return _micro(env, 4, lambda s: _stepped(s, arrays(61), judge))


@CASES.add(*WITH_DREAM)
def accumulated_step_weighted_by_counts(env: Env) -> Figures:
    """Some micro-batches have nothing that counts."""
    x, y = arrays(49)
    y[16:22] = 0
    return _micro(env, 4, lambda s: _stepped(s, (x, y), weighted, weight=weights))


def _clipped(env: Env, by_keras: dict[str, float], **knobs: Any) -> Figures:
    with env.block(knobs=knobs):
        return _fit(momentum(**(by_keras if env.mode == "plain" else {})))


@CASES.add(*EVERYWHERE)
def clip_norm(env: Env) -> Figures:
    return _clipped(env, {"global_clipnorm": 0.05}, clip_norm=0.05)


@CASES.add(*EVERYWHERE)
def clip_value(env: Env) -> Figures:
    return _clipped(env, {"clipvalue": 0.01}, clip_value=0.01)


@CASES.add(*EVERYWHERE)
def clip_norm_with_a_scaled_loss(env: Env) -> Figures:
    """The norm is that of the gradient without its scale."""
    clip = {"global_clipnorm": 0.05} if env.mode == "plain" else {}
    with env.block(knobs={"clip_norm": 0.05}):
        return _fit(keras.optimizers.LossScaleOptimizer(momentum(**clip), initial_scale=1024.0))


@CASES.add(*WITH_DREAM)
def clip_norm_in_a_step(env: Env) -> Figures:
    with env.block(knobs={"clip_norm": 0.05}) as strategy:
        return _stepped(strategy, arrays(49), judge)


def _precise(env: Env, precision: str, micros: int) -> Figures:
    def run(strategy: Any) -> Figures:
        figures = _fit(momentum(), epochs=SHORT)
        optimizer = keras.optimizers.LossScaleOptimizer(momentum(), initial_scale=256.0)
        model, optimizer = strategy.prepare(net(), optimizer)
        step = strategy.train_step(model, judge, optimizer)
        for batch in global_batches(strategy, *arrays(61)):
            step(*batch)
        stepped = {f"step.{name}": value for name, value in parameters_of(model).items()}
        policies = sorted({layer.dtype_policy.name for layer in model.layers})
        return {"parameters": figures["parameters"] | stepped, "policies": policies}

    found = _micro(env, micros, run, precision=precision)
    return {**found, "policy_after": keras.config.dtype_policy().name}


@CASES.add(*WITH_DREAM)
def precision_bfloat16(env: Env) -> Figures:
    return _precise(env, "bfloat16", 2 if env.mode == "single" else 1)


LEVELS = ("O0", "O1", "O2", "O3")


@CASES.add(*WITH_DREAM)
def precision_levels(env: Env) -> Figures:
    """What each level makes of a model and its optimizer, and that it trains."""
    if not TF:
        return {"left_out": "torch's own room has its levels"}
    found: dict[str, Any] = {}
    for level in LEVELS if fully(env.cell) else LEVELS[-1:]:
        with env.block(knobs={"precision": level}):
            model = compiled(momentum(), layers.BatchNormalization())
            model.fit(*arrays(61), batch_size=BATCH, epochs=SHORT, shuffle=False, verbose=0)
        dense = model.layers[1]
        found[level] = {
            "compute": dense.compute_dtype, "weights": {str(v.dtype) for v in model.weights},
            "optimizer": type(model.optimizer).__name__, "parameters": parameters_of(model),
        }  # fmt: skip
        keras.utils.set_random_seed(1)
    return found


@CASES.add(*WITH_DREAM)
def precision_float16(env: Env) -> Figures:
    return _precise(env, "float16", 2 if env.mode == "single" else 1)


@CASES.add(*WITH_DREAM)
def batch_normalisation_over_replicas(env: Env) -> Figures:
    """Normalised over the global batch, by default, in fit and in a step; the last batch leaves a
    replica without a sample."""
    x, y = arrays(49)

    def fitted() -> Any:
        convolved = [layers.Reshape((4, 2)), layers.Conv1D(3, 2), layers.BatchNormalization(),
                     layers.Flatten()]  # fmt: skip
        model = compiled(momentum(), *convolved, layers.BatchNormalization())
        model.fit(x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
        return model

    with env.block(knobs={"sync_batch_norm": True}) as strategy:
        figures = parameters_of(fitted())
        keras.utils.set_random_seed(1)
        model, optimizer = strategy.prepare(net(layers.BatchNormalization()), momentum())
        step = strategy.train_step(model, judge, optimizer)
        for _ in range(3):
            for batch in global_batches(strategy, x, y):
                step(*batch)
    stepped = {f"step.{name}": value for name, value in parameters_of(model).items()}
    return {"parameters": figures | stepped}


class Traced(layers.Layer):
    """Counts how often it is called, which is once a trace, or twice where backward calls too."""

    calls = 0

    def call(self, x: Any) -> Any:
        Traced.calls += 1
        return keras.ops.sin(x)


def _deep(env: Env) -> list[Any]:
    """Layers with statistics of a batch, where a batch is whole."""
    keras.utils.set_random_seed(1)
    cut = "split=pipeline" in env.cell.options
    normal = layers.LayerNormalization if cut else layers.BatchNormalization
    blocks = [
        [
            layers.Dense(16, name=f"dense{i}"),
            normal(),
            Traced(),
            layers.Dropout(0.3, seed=i or None),
        ]
        for i in range(2)
    ]
    return [*chain(*blocks), layers.Dense(16, "tanh"), layers.Dense(4)]


def _of_a_list(chained: list[Any]) -> Any:
    """A functional model of a list of inputs, whose output has a name."""
    inputs = keras.Input((8,))
    x = inputs
    for layer in chained:
        x = layer(x)
    return keras.Model([inputs], {"y": x})


ASKED = (("kept", False), ("all", True), ("sqrt", "sqrt"), ("named", ["dense1"]))


def _asked(env: Env) -> Any:
    return ASKED if fully(env.cell) else ASKED[:2]


@CASES.add(*WITH_DREAM)
def recomputed(env: Env) -> Figures:
    """Layers with statistics and with masks of their own; the input comes in a list, and what is
    given goes out by name."""
    found: dict[str, Any] = {}
    x, y = arrays(33)
    for name, asked in _asked(env):
        with env.block(knobs={"recompute": asked}):
            model = _of_a_list(_deep(env))
            model.compile(momentum(), {"y": loss()}, metrics={"y": ["accuracy"]})
            Traced.calls = 0
            model.fit([x], {"y": y}, batch_size=BATCH, shuffle=False, verbose=0)
        found[name] = {"parameters": parameters_of(model), "calls": Traced.calls}
    return found


@CASES.add(*WITH_DREAM)
def recomputed_in_half(env: Env) -> Figures:
    """Backward computes in the type that forward did."""
    found: dict[str, Any] = {}
    for name, asked in ASKED[:2]:
        with env.block(knobs={"recompute": asked, "precision": "float16"}):
            model = compiled(momentum())
            model.fit(*arrays(33), batch_size=BATCH, shuffle=False, verbose=0)
        found[name] = parameters_of(model)
        keras.utils.set_random_seed(1)
    return found


@CASES.add(*WITH_DREAM)
def recomputed_in_a_step(env: Env) -> Figures:
    found: dict[str, Any] = {}
    for name, asked in _asked(env):
        with env.block(knobs={"recompute": asked}) as strategy:
            made = keras.Sequential([keras.Input((8,)), *_deep(env)])
            model, optimizer = strategy.prepare(made, momentum())
            Traced.calls = 0
            step = strategy.train_step(model, judge, optimizer)
            for batch in global_batches(strategy, *arrays(33)):
                step(*batch)
        found[name] = {"parameters": parameters_of(model), "calls": Traced.calls}
    return found


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


@CASES.add(*WITH_DREAM)
def knobs_refused(env: Env) -> Figures:
    def twice() -> None:
        with env.block(knobs={"clip_norm": 0.05}):
            compiled(momentum(clipnorm=1.0))

    def own_step() -> None:
        with env.block(knobs={"accumulate": 2}):
            inputs = keras.Input((8,))
            model = OwnStep(inputs, layers.Dense(4)(inputs))
            model.compile(momentum(), loss())
            model.fit(*arrays(16), batch_size=BATCH, verbose=0)

    def unscaled() -> None:
        with env.block(knobs={"precision": "float16"}) as strategy:
            strategy.train_step(net(), judge, momentum())

    return {
        "twice": refusal(twice),
        "own_step": refusal(own_step),
        "unscaled": refusal(unscaled),
    }
