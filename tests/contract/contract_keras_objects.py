"""Files, copies, what the block leaves behind, the explicit form and what is refused."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import keras
import numpy as np
from contract_case import EVERYWHERE, WITH_DREAM, Env, Figures, refusal
from contract_keras_kit import (
    BATCH,
    CASES,
    TF,
    adamw,
    arrays,
    compiled,
    loss,
    momentum,
    net,
    numbers,
    parameters,
)
from keras import layers

import dream


@CASES.add(*WITH_DREAM)
def files_are_rank_0s(env: Env) -> Figures:
    """Every rank saves by every way that Keras has, to files of its own name."""
    folder = env.folder / f"{env.mode}-files"
    folder.mkdir(exist_ok=True)
    x, y = arrays(61)
    with env.block():
        model = compiled(momentum())
        best = keras.callbacks.ModelCheckpoint(folder / f"best{env.rank}.keras", monitor="loss")
        log = keras.callbacks.CSVLogger(str(folder / f"log{env.rank}.csv"))
        model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[best, log])
        model.save(folder / f"whole{env.rank}.keras")
        model.save_weights(folder / f"only{env.rank}.weights.h5")
        keras.saving.save_model(model, folder / f"function{env.rank}.keras")
        if env.rank == 0:
            model.save(folder / "guarded.keras")
    own = re.compile(rf"[a-z]+{env.rank}\..+")
    names = sorted(path.name for path in folder.iterdir() if own.fullmatch(path.name))
    loaded: dict[str, Any] = {}
    if env.rank == 0:
        for name in ("best0.keras", "whole0.keras", "function0.keras", "guarded.keras"):
            loaded[name] = parameters(keras.saving.load_model(folder / name))
        model.load_weights(folder / "only0.weights.h5")
        loaded["only"] = parameters(model)
    left = [path.name for path in folder.glob(f".part-*.*{env.rank}.*")]
    return {"parameters": parameters(model), "names": names, "loaded": loaded, "left": left}


@CASES.add(*EVERYWHERE)
def copies(env: Env) -> Figures:
    """Clone, deep copy and pickle of a distributed model, each used by rank 0 alone."""
    x, y = arrays(61)
    with env.block():
        model = compiled(momentum())
        model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    figures: Figures = {"parameters": parameters(model), "moved": {}}
    made = {"deepcopy": copy.deepcopy(model), "pickle": pickle.loads(pickle.dumps(model))}
    made["clone"] = keras.models.clone_model(model)
    made["clone"].set_weights(model.get_weights())
    for name, kept in made.items():
        figures[name] = parameters(kept)
        if env.rank == 0:
            kept.compile(momentum(), loss())
            kept.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
            figures["moved"][name] = parameters(kept)
    return figures


def _owners() -> tuple[Any, ...]:
    owners = [
        keras.Model, keras.Sequential, keras.layers.Layer, keras.layers.Dense,
        keras.layers.BatchNormalization, keras.layers.Dropout, keras.optimizers.Optimizer,
        keras.optimizers.SGD, keras.optimizers.AdamW, keras.metrics.Metric,
        keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger, keras.callbacks.Callback,
        keras.saving, keras.models, keras.utils, keras.random, keras.losses.Loss, keras.Variable,
        *keras.Model.__mro__,
    ]  # fmt: skip
    if TF:
        import tensorflow as tf
        from keras.src.backend.tensorflow import trainer

        owners += [trainer, trainer.TensorFlowTrainer, tf.data.Dataset, tf.GradientTape, tf]
    else:
        import torch
        from keras.src.backend.torch import trainer
        from torch.utils.data import DataLoader

        owners += [trainer, trainer.TorchTrainer, torch, torch.nn.Module, DataLoader]
    return tuple(owners)


def _attributes() -> dict[str, object]:
    return {
        f"{owner.__name__}.{name}": value
        for owner in _owners()
        for name, value in vars(owner).items()
        if callable(value) or isinstance(value, (property, classmethod, staticmethod))
    }


@CASES.add(*WITH_DREAM)
def nothing_stays_patched(env: Env) -> Figures:
    x, y = arrays(61)
    with env.block():  # whatever is only imported on first use is so now
        compiled(momentum()).fit(x, y, batch_size=BATCH, verbose=0)
    before = _attributes()
    with env.block():
        model = compiled(momentum())
    after = _attributes()
    error = refusal(lambda: _fail_inside(env))
    after_error = _attributes()
    keras.utils.set_random_seed(40 + env.rank)
    outside = compiled(momentum())
    begin = parameters(outside)
    outside.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return {
        "after": [name for name in before if after.get(name) is not before[name]],
        "after_error": [name for name in before if after_error.get(name) is not before[name]],
        "error": error,
        "inside": type(model).__name__,
        "begin": begin,
        "outside": parameters(outside),
    }


def _fail_inside(env: Env) -> None:
    with env.block():
        raise KeyError("the user's own")


def global_batches(strategy: Any, x: np.ndarray, y: np.ndarray) -> Any:
    """The explicit form's data: global batches that prepare deals."""
    if TF:
        import tensorflow as tf

        return strategy.prepare(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH))
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return strategy.prepare(DataLoader(data, batch_size=BATCH))


def _explicit(env: Env, optimizer: Any, samples: int) -> Figures:
    """The last rank reads each value at once and alone, the others at the end."""
    values: list[Any] = []
    with env.block() as strategy:
        model, optimizer = net(), optimizer()
        batches = global_batches(strategy, *arrays(samples))
        model, optimizer = strategy.prepare(model, optimizer)
        step = strategy.train_step(model, judge, optimizer)
        for _ in range(3):
            for batch in batches:
                value = step(*batch)
                values.append(float(value) if env.last else value)
    return {"parameters": parameters(model), "values": [float(value) for value in values]}


def judge(prediction: Any, target: Any) -> Any:
    return loss()(target, prediction)


@CASES.add(*WITH_DREAM)
def step_momentum(env: Env) -> Figures:
    return _explicit(env, momentum, 61)


@CASES.add(*WITH_DREAM)
def step_adamw_rank_without_sample(env: Env) -> Figures:
    return _explicit(env, adamw, 49)


def weights(_: Any, y: Any) -> Any:
    """Class 0 counts for nothing, the others by their number."""
    return keras.ops.sum(keras.ops.cast(y, "float32"))


def weighted(prediction: Any, target: Any) -> Any:
    """The mean over what `weights` counts; nan where that is nothing."""
    each = keras.losses.sparse_categorical_crossentropy(target, prediction, from_logits=True)
    counts = keras.ops.cast(target, "float32")
    return keras.ops.sum(each * counts) / keras.ops.sum(counts)


@CASES.add(*WITH_DREAM)
def step_weighted_by_counts(env: Env) -> Figures:
    """Unequal counts; the second of two replicas has none at all in the second batch, that of
    three in the third."""
    x, y = arrays(49)
    for replicas in (2, 3):
        part = np.arange(BATCH) % replicas == 1
        y[BATCH * (replicas - 1) : BATCH * replicas][part] = 0
    values = []
    with env.block() as strategy:
        model, optimizer = strategy.prepare(net(), momentum())
        step = strategy.train_step(model, weighted, optimizer, weight=weights)
        for _ in range(3):
            for batch in global_batches(strategy, x, y):
                values.append(float(step(*batch)))
    return {"parameters": parameters(model), "values": values}


@CASES.add(*WITH_DREAM)
def evaluate(env: Env) -> Figures:
    def right(prediction: Any, target: Any) -> Any:
        return keras.ops.cast(
            keras.ops.cast(keras.ops.argmax(prediction, -1), "int64") == target, "float32"
        )

    with env.block() as strategy:
        model = compiled(momentum())
        model.fit(*arrays(61), batch_size=BATCH, shuffle=False, verbose=0)
        data = global_batches(strategy, *arrays(49))
        found = strategy.evaluate(model, data, {"right": right})
        keras_says = model.evaluate(*arrays(49), batch_size=BATCH, verbose=0, return_dict=True)
    return {"found": numbers(found), "keras": numbers(keras_says)}


@CASES.add(*WITH_DREAM)
def communicator(env: Env) -> Figures:
    with env.block() as strategy:
        talk = strategy.communicator
        figures: Figures = {"ranks": (talk.rank, talk.world_size)}
        figures["topology"] = [strategy.topology.rank, strategy.topology.world_size]
        figures["topology"].append(strategy.topology.num_replicas)
        for name, kind in (("tensors", keras.ops.convert_to_tensor), ("arrays", np.asarray)):
            figures[name] = _exchange(talk, kind, env.rank)
        talk.barrier()
        integers = keras.ops.ones(2, "int32")
        figures["mean_of_integers"] = refusal(lambda: talk.all_reduce(integers))
        figures["unknown_op"] = refusal(lambda: talk.all_reduce(keras.ops.ones(2), op="median"))
        talk.barrier()
    return figures


def _exchange(talk: Any, kind: Any, rank: int) -> Figures:
    base = np.arange(6, dtype=np.float32).reshape(2, 3) + 10.0 * rank
    given = [kind(base), kind(base.astype(np.int64))]
    figures: Figures = {
        op: [np.asarray(talk.all_reduce(x, op=op)) for x in given] for op in ("sum", "min", "max")
    }
    figures["mean"] = [np.asarray(talk.all_reduce(given[0]))]
    figures["list"] = [np.asarray(x) for x in talk.all_reduce(given, op="sum")]
    figures["broadcast"] = [np.asarray(talk.broadcast(x)) for x in given]
    last = talk.world_size - 1
    figures["broadcast_last"] = [np.asarray(x) for x in talk.broadcast(given, root=last)]
    figures["unchanged"] = all(np.array_equal(np.asarray(x), base) for x in given)
    figures["kinds"] = [type(talk.all_reduce(x, op="max")) is type(x) for x in given]
    return figures


@CASES.add("cell")
def refusals(env: Env) -> Figures:
    """Each raises on every rank, before anybody waits for another."""
    x, y = arrays(16)
    before = net()
    figures: Figures = {}
    with env.block() as strategy:
        model = compiled(momentum())
        figures["small"] = refusal(lambda: model.fit(x, y, batch_size=env.replicas - 1, verbose=0))
        summed = net()
        figures["unreduced"] = refusal(lambda: _fit_unreduced(summed, x, y))
        figures["nested"] = refusal(lambda: env.strategy().__enter__())
        figures["current"] = dream.current() is strategy
        figures["made_before"] = refusal(lambda: _fit_prepared(strategy, before, x, y))
    figures["strategy"] = refusal(lambda: dream.strategy("mirored", framework=env.cell.framework))
    figures["option"] = refusal(lambda: env.strategy(bucket_md=3))
    figures["foreign"] = refusal(lambda: env.strategy(bucket_mb=3.0))
    figures["single"] = refusal(lambda: dream.strategy("single", framework=env.cell.framework))
    return figures


def _fit_unreduced(model: Any, x: np.ndarray, y: np.ndarray) -> None:
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True, reduction=None))
    model.fit(x, y, batch_size=BATCH, verbose=0)


def _fit_prepared(strategy: Any, model: Any, x: np.ndarray, y: np.ndarray) -> None:
    model.compile("sgd", loss())
    strategy.prepare(model)
    model.fit(x, y, batch_size=BATCH, verbose=0)


@CASES.add("cell")
def ranks_that_built_different_models(env: Env) -> Figures:
    """The last rank's second layer is wider. Means nothing in one process."""
    with env.block():
        return refusal(lambda: _fit_odd(5 if env.last else 4))


def _fit_odd(units: int) -> None:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(units, name="odd"), layers.Dense(4)])
    model.compile("sgd", loss())
    x, y = arrays(16)
    model.fit(x, y, batch_size=BATCH, verbose=0)
