"""fit, evaluate and predict as users write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from contract_case import EVERYWHERE, WITH_DREAM, Env, Figures, refusal
from contract_keras_kit import (
    BATCH,
    CASES,
    EPOCHS,
    SHORT,
    TF,
    Heard,
    Told,
    adamw,
    arrays,
    compiled,
    loss,
    momentum,
    net,
    numbers,
    optimizer_state,
    parameters,
)
from keras import layers

from dream.data.partition import epoch_order


def _fitted(
    env: Env, optimizer: Any, samples: int, *, epochs: int = EPOCHS, **options: Any
) -> Figures:
    """Some epochs, the logs of every batch and epoch among the figures."""
    told = Told()
    x, y = arrays(samples)
    with env.block():
        model = compiled(optimizer())
        history = model.fit(
            x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0,
            callbacks=[told], **options,
        )  # fmt: skip
    return {
        "parameters": parameters(model),
        "optimizer": optimizer_state(model),
        "history": {name: np.array(values) for name, values in history.history.items()},
        "batches": told.batches,
        "epochs": told.epochs,
        "model": model,
    }


def _without_model(figures: Figures) -> Figures:
    return {name: value for name, value in figures.items() if name != "model"}


@CASES.add(*EVERYWHERE)
def uneven_momentum(env: Env) -> Figures:
    """With validation, then evaluate and predict outside the block, over short batches."""
    x, y = arrays(23)
    figures = _fitted(env, momentum, 61, validation_data=(x, y), validation_batch_size=7)
    model = figures["model"]
    figures["evaluate"] = numbers(model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True))
    figures["predict"] = np.asarray(model.predict(x, batch_size=7, verbose=0))
    return _without_model(figures)


@CASES.add(*EVERYWHERE)
def uneven_adamw(env: Env) -> Figures:
    return _without_model(_fitted(env, adamw, 61))


@CASES.add(*EVERYWHERE)
def even_momentum(env: Env) -> Figures:
    return _without_model(_fitted(env, momentum, 64, epochs=SHORT))


@CASES.add(*EVERYWHERE)
def rank_without_sample_momentum(env: Env) -> Figures:
    return _without_model(_fitted(env, momentum, 49, epochs=SHORT))


@CASES.add(*EVERYWHERE)
def rank_without_sample_adamw(env: Env) -> Figures:
    """Validation too ends in a batch of one; and every rank's own initial weights differ."""
    keras.utils.set_random_seed(100 + env.rank)
    x, y = arrays(17)
    return _without_model(_fitted(env, adamw, 49, validation_data=(x, y)))


@CASES.add(*EVERYWHERE)
def rank_dependent_initial_weights(env: Env) -> Figures:
    keras.utils.set_random_seed(100 + env.rank)
    return _without_model(_fitted(env, momentum, 61, epochs=SHORT))


@CASES.add(*EVERYWHERE)
def shuffled(env: Env) -> Figures:
    """By Keras, whose order is the script's own; then in one that a seed fixes, which plain Keras
    is fed."""
    x, y = arrays(61)
    with env.block():
        model = compiled(momentum())
        model.fit(x, y, batch_size=BATCH, epochs=SHORT, verbose=0)
        model.fit(x, y, batch_size=BATCH, shuffle="batch", verbose=0)
    with env.block(seed=4):
        fixed = compiled(momentum())
        if env.mode == "plain":
            for epoch in range(SHORT):
                order = epoch_order(61, seed=4, epoch=epoch, shuffle=True)
                fixed.fit(x[order], y[order], batch_size=BATCH, shuffle=False, verbose=0)
        else:
            fixed.fit(x, y, batch_size=BATCH, epochs=SHORT, verbose=0)
    return {"parameters": {**parameters(model), **_named("fixed ", parameters(fixed))}}


def _named(before: str, figures: Figures) -> Figures:
    return {f"{before}{name}": value for name, value in figures.items()}


@CASES.add(*EVERYWHERE)
def dropout(env: Env) -> Figures:
    """Masks of the global batch, seeded and not, in a shuffled fit with short batches; then the
    generators stand where one device's do."""
    x, y = arrays(49)
    with env.block():
        noisy = (layers.Dropout(0.3), layers.GaussianNoise(0.2), layers.Dropout(0.2, seed=7))
        model = compiled(momentum(), *noisy)
        model.fit(x, y, batch_size=BATCH, epochs=SHORT, verbose=0)
    ones = np.ones((4, 8), np.float32)
    masks = [keras.ops.convert_to_numpy(layer(ones, training=True)) for layer in noisy]
    return {"parameters": {**parameters(model), "masks": np.stack(masks)}}


def _clipped(env: Env, **options: Any) -> Figures:
    """Trained in the block, and on after it."""
    x, y = arrays(61)
    with env.block():
        model = compiled(momentum(**options))
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def clipnorm(env: Env) -> Figures:
    return _clipped(env, clipnorm=0.05)


@CASES.add(*EVERYWHERE)
def global_clipnorm(env: Env) -> Figures:
    return _clipped(env, global_clipnorm=0.05)


@CASES.add(*EVERYWHERE)
def clipvalue(env: Env) -> Figures:
    return _clipped(env, clipvalue=0.01)


@CASES.add(*EVERYWHERE)
def sample_weight(env: Env) -> Figures:
    x, y = arrays(61)
    weights = np.random.default_rng(3).uniform(0.0, 3.0, 61).astype(np.float32)
    weights[5:9] = 0.0
    told = Told()
    with env.block():
        model = compiled(momentum(), weighted_metrics=["accuracy"])
        model.fit(
            x, y, batch_size=BATCH, epochs=SHORT, shuffle=False, verbose=0,
            sample_weight=weights, callbacks=[told],
        )  # fmt: skip
        evaluated = model.evaluate(
            x, y, batch_size=BATCH, sample_weight=weights, verbose=0, return_dict=True
        )
    return {
        "parameters": parameters(model), "epochs": told.epochs, "evaluate": numbers(evaluated)
    }  # fmt: skip


@CASES.add(*EVERYWHERE)
def class_weight(env: Env) -> Figures:
    x, y = arrays(61)
    told = Told()
    with env.block():
        model = compiled(momentum())
        model.fit(
            x, y, batch_size=BATCH, epochs=SHORT, shuffle=False, verbose=0,
            class_weight={0: 1.0, 1: 5.0, 2: 0.2, 3: 1.0}, callbacks=[told],
        )  # fmt: skip
    return {"parameters": parameters(model), "epochs": told.epochs}


@CASES.add(*EVERYWHERE)
def several_outputs(env: Env) -> Figures:
    """Two losses with weights, a penalty on a kernel, metrics of several kinds."""
    x, y = arrays(49)
    told = Told()
    with env.block():
        inputs = keras.Input((8,))
        hidden = layers.Dense(16, activation="tanh", kernel_regularizer="l2")(inputs)
        outputs = {
            "kind": layers.Dense(4, name="kind")(hidden),
            "again": layers.Dense(8, name="again")(hidden),
        }
        model = keras.Model(inputs, outputs)
        model.compile(
            momentum(),
            {"kind": loss(), "again": "mse"},
            loss_weights={"kind": 1.0, "again": 0.2},
            metrics={
                "kind": [keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")],
                "again": [keras.metrics.RootMeanSquaredError(name="rms")],
            },
        )
        model.fit(
            x, {"kind": y, "again": x}, batch_size=BATCH, epochs=SHORT, shuffle=False,
            verbose=0, callbacks=[told],
        )  # fmt: skip
        predicted = model.predict(x, batch_size=BATCH, verbose=0)
    return {
        "parameters": parameters(model),
        "epochs": told.epochs,
        "predict": np.concatenate([np.asarray(predicted[name]) for name in ("kind", "again")], 1),
    }


@CASES.add(*EVERYWHERE)
def dataset_of_the_users(env: Env) -> Figures:
    """A tf.data.Dataset or a DataLoader of global batches, made in the block and given to fit."""
    x, y = arrays(49)
    with env.block():
        model = compiled(momentum())
        model.fit(_dataset(x, y), epochs=SHORT, verbose=0)
        evaluated = model.evaluate(_dataset(x, y), verbose=0, return_dict=True)
    return {"parameters": parameters(model), "evaluate": numbers(evaluated)}


def _dataset(x: np.ndarray, y: np.ndarray) -> Any:
    if TF:
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), batch_size=BATCH)


class _Sequence(keras.utils.PyDataset):
    """Global batches that a user cuts."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self.x, self.y = x, y

    def __len__(self) -> int:
        return -(-len(self.x) // BATCH)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


@CASES.add(*EVERYWHERE)
def python_dataset_of_the_users(env: Env) -> Figures:
    with env.block():
        model = compiled(momentum())
        model.fit(_Sequence(*arrays(49)), epochs=SHORT, shuffle=False, verbose=0)
    return {"parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def stopped_early(env: Env) -> Figures:
    """Callbacks whose decision hangs on logs: all ranks stop at the same epoch."""
    x, y = arrays(61)
    told = Told()
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    slow = keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5)
    with env.block():
        model = compiled(keras.optimizers.SGD(1.0, momentum=0.9))
        model.fit(
            x, y, batch_size=BATCH, epochs=12, shuffle=False, verbose=0, validation_split=0.3,
            callbacks=[slow, stop, told],
        )  # fmt: skip
    return {"parameters": parameters(model), "epochs": told.epochs, "stopped": stop.stopped_epoch}


@CASES.add(*EVERYWHERE)
def fitted_after_the_block(env: Env) -> Figures:
    x, y = arrays(49)
    with env.block():
        model = compiled(adamw())
    for _ in range(2):
        model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return {
        "parameters": parameters(model),
        "evaluate": numbers(model.evaluate(x, y, batch_size=9, verbose=0, return_dict=True)),
        "predict": np.asarray(model.predict(x, batch_size=9, verbose=0)),
    }


def _or_refused(act: Callable[[], Figures]) -> Figures:
    """The figures, or what dream raised instead."""
    figures: Figures = {}
    refused = refusal(lambda: figures.update(act()))
    return figures if refused["types"] == [] else {"refused": refused}


@CASES.add(*EVERYWHERE)
def accumulated_by_the_optimizer(env: Env) -> Figures:
    return _or_refused(lambda: _clipped(env, gradient_accumulation_steps=2, global_clipnorm=0.05))


@CASES.add(*EVERYWHERE)
def averaged_by_the_optimizer(env: Env) -> Figures:
    """use_ema: the variables are the averages once fit has ended."""
    return _or_refused(lambda: _clipped(env, use_ema=True, ema_momentum=0.9))


@CASES.add(*EVERYWHERE)
def loop_written_by_hand(env: Env) -> Figures:
    """The backend's own loop around a Keras model and optimizer, each rank on its equal share."""
    x, y = arrays(48)

    def loop() -> Figures:
        with env.block():
            model, optimizer = net(), momentum()
            gradients = _gradients_of(model, eager=True)
            for begin in range(0, 48, 12):
                rows = slice(begin + env.rank, begin + 12, env.ranks)
                found = gradients(x[rows], y[rows])
                optimizer.apply(list(found), model.trainable_variables)
        return {"parameters": parameters(model)}

    return _or_refused(loop)


@CASES.add(*WITH_DREAM)
def batch_normalisation(env: Env) -> Figures:
    """One even batch through a BatchNormalization, its statistics, what was said; then more."""
    import logging

    heard = Heard()
    logging.getLogger("dream").addHandler(heard)
    try:
        with env.block(knobs={"sync_batch_norm": False}):
            model = compiled(momentum(), layers.BatchNormalization())
            x, y = arrays(12)
            model.fit(x, y, batch_size=12, shuffle=False, verbose=0)
            once = [np.array(value) for value in model.layers[0].get_weights()[2:]]
            model.fit(*arrays(49), batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    finally:
        logging.getLogger("dream").removeHandler(heard)
    return {"once": once, "inputs": x, "lines": heard.lines, "parameters": parameters(model)}


def _attention(env: Env, optimizer: Any) -> Figures:
    x, y = arrays(61)
    with env.block():
        model = _attending()
        first = parameters(model)
        model.compile(optimizer(), loss())
        model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    return {"parameters": parameters(model), "first": first}


def _attending() -> Any:
    inputs = keras.Input((8,))
    rows = layers.Reshape((4, 2))(inputs)
    seen = layers.MultiHeadAttention(2, 4)(rows, rows)
    return keras.Model(inputs, layers.Dense(4)(layers.Flatten()(seen)))


@CASES.add(*EVERYWHERE)
def attention_momentum(env: Env) -> Figures:
    return _attention(env, momentum)


@CASES.add(*EVERYWHERE)
def attention_adamw(env: Env) -> Figures:
    figures = _attention(env, adamw)
    if env.mode == "plain":
        figures["in_parts"] = {parts: _in_parts(figures["first"], parts) for parts in (2, 3)}
    return figures


def _in_parts(first: dict[str, np.ndarray], parts: int) -> Any:
    """One device's own training with each batch summed in as many parts: the noise's size."""
    x, y = arrays(61)
    model, optimizer = _attending(), adamw()
    model.set_weights(list(first.values()))
    gradients = _gradients_of(model)
    for begin in [*range(0, 61, BATCH)] * EPOCHS:
        rows = slice(begin, min(begin + BATCH, 61))
        total: list[Any] = []
        for part in range(parts):
            a, b = x[rows][part::parts], y[rows][part::parts]
            found = [gradient * (len(b) / len(y[rows])) for gradient in gradients(a, b)]
            total = [s + g for s, g in zip(total, found, strict=True)] if total else found
        optimizer.apply(total, model.trainable_variables)
    return parameters(model)


def _gradients_of(
    model: Any, *, eager: bool = False
) -> Callable[[np.ndarray, np.ndarray], list[Any]]:
    judge, variables = loss(), model.trainable_variables
    if TF:
        import tensorflow as tf

        def gradients(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                value = judge(y, model(x, training=True))
            return tape.gradient(value, [variable.value for variable in variables])

        return gradients if eager else tf.function(gradients, reduce_retracing=True)
    import torch

    def gradients(x: np.ndarray, y: np.ndarray) -> Any:
        values = [variable.value for variable in variables]
        return torch.autograd.grad(judge(y, model(x, training=True)), values)

    return gradients
