"""Gradients that travel otherwise than as they are, in fit and in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from contract_case import WITH_DREAM, Env, Figures, refusal
from contract_keras_kit import BATCH, CASES, EPOCHS, TF, arrays, compiled, momentum, net, parameters
from contract_keras_names import fully
from contract_keras_objects import global_batches, judge

KINDS = (
    ("float16", "topk:0.1", "bfloat16") if TF else ("float16", "topk:0.1", "bfloat16", "powersgd:2")
)
Sent = Callable[[], float]


@contextmanager
def _wire_bytes(strategy: Any) -> Iterator[Sent]:
    """What this rank has handed to its wire so far, as each collective sends at least: counted
    where it runs, in a graph too."""
    wire = strategy.communicator._wire
    kind, ranks = type(wire), strategy.topology.world_size
    add, total = _counter()
    factors = {"all_reduce": 2 * (ranks - 1) / ranks, "all_to_all": (ranks - 1) / ranks}
    own = {name: getattr(kind, name) for name in (*factors, "all_gather")}

    def noting(name: str) -> Any:
        def call(self: Any, buffers: Any, *args: Any) -> Any:
            if self is wire:
                listed = buffers if isinstance(buffers, list) else [buffers]
                add(sum(map(_size, listed)) * factors.get(name, ranks - 1))
            return own[name](self, buffers, *args)

        return call

    for name in own:
        setattr(kind, name, noting(name))
    try:
        yield total
    finally:
        for name, method in own.items():
            setattr(kind, name, method)


def _size(buffer: Any) -> int:
    each = buffer.dtype.size if TF else buffer.dtype.itemsize
    return int(np.prod(tuple(buffer.shape))) * each


def _counter() -> tuple[Callable[[float], object], Sent]:
    """(what adds, what gives the sum)."""
    if TF:
        import tensorflow as tf

        counted = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        return lambda size: counted.assign_add(size), lambda: float(counted)
    sizes: list[float] = []
    return sizes.append, lambda: sum(sizes)


def _fit(epochs: int, sent: Sent, model: Any) -> tuple[Any, float]:
    """(its history, bytes of a step: of the last one, whose batch is uneven)."""
    noted: list[float] = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            noted.append(sent())

    history = model.fit(
        *arrays(61), batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=[Note()]
    ).history
    return history, noted[-1] - noted[-2]


def _step(strategy: Any, sent: Sent) -> tuple[Any, float]:
    """The last batch of each epoch leaves a rank without a sample."""
    model, optimizer = strategy.prepare(net(), momentum())
    step = strategy.train_step(model, judge, optimizer)
    batches = [batch for _ in range(EPOCHS) for batch in global_batches(strategy, *arrays(49))]
    for batch in batches[:-1]:
        float(step(*batch))
    before = sent()
    float(step(*batches[-1]))
    return parameters(model), sent() - before


def _travelled(strategy: Any, sent: Sent) -> Figures:
    model = compiled(momentum())
    _, in_fit = _fit(EPOCHS, sent, model)
    found = parameters(model)
    history, _ = _fit(EPOCHS + 1, sent, model)
    stepped, in_step = _step(strategy, sent)
    return {
        "parameters": found,
        "stepped": stepped,
        "learnt": history["loss"][-1],
        "fit_bytes": in_fit,
        "step_bytes": in_step,
    }


def _compressed(env: Env, kind: str) -> Figures:
    keras.utils.set_random_seed(1)
    with env.block(compression=kind) as strategy, _wire_bytes(strategy) as sent:
        return _travelled(strategy, sent)


@CASES.add(*WITH_DREAM)
def compressed(env: Env) -> Figures:
    """Parameters after 20 updates, how it learns on, and bytes of an update."""
    if env.mode == "single":
        with env.block() as strategy:
            return _travelled(strategy, lambda: 0.0)
    kinds = KINDS if fully(env.cell) or not TF else KINDS[:1]
    return {kind: _compressed(env, kind) for kind in (KINDS[:1] if env.cell.core else kinds)}


def _moved(act: Callable[[], Any]) -> Any:
    """What a step of rate 1 without momentum takes off a model's weights: the gradient."""
    keras.utils.set_random_seed(1)
    model, begin = act()
    return [a - b for a, b in zip(begin, model.get_weights(), strict=True)]


@CASES.add("cell")
def adasum(env: Env) -> Figures:
    """Each rank's own gradient of a model, and what became of them in fit and in a step."""
    x, y = arrays(8 * env.ranks)

    def fitted() -> Any:
        model = compiled(keras.optimizers.SGD(1.0))
        begin = model.get_weights()
        model.fit(x, y, batch_size=len(x), epochs=1, shuffle=False, verbose=0)
        return model, begin

    def stepped(strategy: Any) -> Any:
        model, optimizer = strategy.prepare(net(), keras.optimizers.SGD(1.0))
        begin = model.get_weights()
        step = strategy.train_step(model, judge, optimizer)
        for batch in _one_batch(strategy, x, y):
            step(*batch)
        return model, begin

    def alone() -> Any:
        model = compiled(keras.optimizers.SGD(1.0))
        begin = model.get_weights()
        model.train_on_batch(x[env.rank :: env.ranks], y[env.rank :: env.ranks])
        return model, begin

    def act() -> Figures:
        with env.block(op="adasum") as strategy:
            found = {"fit": _moved(fitted), "step": _moved(lambda: stepped(strategy))}
            model = compiled(momentum())
            history = model.fit(
                *arrays(61), batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0
            ).history
        return {
            "own": _moved(alone),
            **found,
            "parameters": parameters(model),
            "losses": history["loss"],
        }

    figures: Figures = {}
    figures["refusal"] = refusal(lambda: figures.update(act()))
    return figures


def _one_batch(strategy: Any, x: Any, y: Any) -> Any:
    if TF:
        import tensorflow as tf

        return strategy.prepare(tf.data.Dataset.from_tensor_slices((x, y)).batch(len(x)))
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return strategy.prepare(DataLoader(data, batch_size=len(x)))


@CASES.add("cell")
def travel_refused(env: Env) -> Figures:
    def scaled() -> None:
        with env.block(compression="topk"):
            compiled(keras.optimizers.LossScaleOptimizer(momentum()))

    def low_rank() -> None:
        with env.block(compression="powersgd:2"):
            pass

    def rounded() -> None:
        with env.block(compression="float16"):
            pass

    return {
        "scaled": refusal(scaled),
        "low_rank": refusal(low_rank),
        "rounded": refusal(rounded),
    }
