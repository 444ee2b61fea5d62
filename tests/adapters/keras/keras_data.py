"""Fits left in mid-epoch, and gone on with by another number of replicas."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras_cases import BATCH, Pairs, arrays, compiled, loss, net

import dream

Kept = dict[str, Any]
SEED, EPOCHS, SAMPLES = 4, 3, 61


def _data(kind: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What fit is given."""
    if kind == "python_dataset":
        return (Pairs(*arrays(SAMPLES)),), {"shuffle": True}
    shuffle = {"arrays": True, "arrays_in_batches": "batch", "arrays_in_order": False}[kind]
    return arrays(SAMPLES), {"shuffle": shuffle, "batch_size": BATCH}


class Stop(keras.callbacks.Callback):
    """Ends training after a batch of an epoch, and keeps what is to be kept."""

    def __init__(self, strategy: Any, epoch: int, batch: int) -> None:
        super().__init__()
        self.strategy, self.place = strategy, (epoch, batch)
        self.epoch, self.kept = 0, {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.place:
            self.model.stop_training = True
            self.kept = _kept(self.model, self.strategy.data_state(self.model))


def _kept(model: Any, data: Any) -> Kept:
    variables = [np.array(v) for v in model.optimizer.variables]
    return {"weights": model.get_weights(), "optimizer": variables, "data": data}


def _load(model: Any, kept: Kept) -> None:
    model.set_weights(kept["weights"])
    model.optimizer.build(model.trainable_variables)
    for variable, value in zip(model.optimizer.variables, kept["optimizer"], strict=True):
        variable.assign(value)


def _model() -> Any:
    """Adam shows an update that is counted once too often; momentum does not."""
    return compiled(net(), optimizer=keras.optimizers.Adam(0.01), metrics=["accuracy"])


def _fit(kind: str, model: Any, *callbacks: Any) -> dict[str, Any]:
    data, options = _data(kind)
    counted = Count()
    told = model.fit(*data, epochs=EPOCHS, verbose=0, callbacks=[*callbacks, counted], **options)
    return {
        "counted": counted.batches, "logs": told.history,
        "iterations": int(model.optimizer.iterations),
    }  # fmt: skip


class Count(keras.callbacks.Callback):
    """How many batches each epoch had."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.batches.append(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches[-1] += 1


def _each(
    kinds: Sequence[str], options: dict[str, Any], act: Callable[[str, Any], Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in kinds:
        with dream.strategy("mirrored", seed=SEED, **options) as strategy:
            try:
                found[kind] = act(kind, strategy)
            except Exception:
                found[kind] = traceback.format_exc()
    return found


def whole(kinds: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    """In one go."""

    def act(kind: str, strategy: Any) -> Any:
        if kind == "dataset":
            return _stepped(strategy, None, EPOCHS)
        model = _model()
        figures = _fit("arrays" if kind == "restored" else kind, model)
        return {"weights": model.get_weights(), **figures}

    return _each(kinds, options, act)


def begin(kinds: Sequence[str], options: dict[str, Any], folder: str) -> dict[str, Any]:
    """An epoch and half of one, and what is kept then."""

    def act(kind: str, strategy: Any) -> Any:
        if kind == "dataset":
            return _stepped(strategy, None, 1, stop=2)
        model = _model()
        if kind == "restored":
            return _interrupted(model, folder)
        stop = Stop(strategy, 1, 1)
        figures = _fit(kind, model, stop)
        after = strategy.data_state(model)
        return {**stop.kept, "after": after, **figures}

    return _each(kinds, options, act)


def go_on(
    kinds: Sequence[str], options: dict[str, Any], kept: dict[str, Kept], folder: str
) -> dict[str, Any]:
    """The rest."""

    def act(kind: str, strategy: Any) -> Any:
        if kind == "dataset":
            return _stepped(strategy, kept[kind], EPOCHS - 1)
        model = _model()
        if kind == "restored":
            figures = _fit("arrays", model, _backup(folder))
        else:
            _load(model, kept[kind])
            strategy.load_data_state(model, kept[kind]["data"])
            figures = _fit(kind, model)
        return {"weights": model.get_weights(), **figures}

    return _each(kinds, options, act)


def _backup(folder: str) -> Any:
    return keras.callbacks.BackupAndRestore(folder, save_freq=6, delete_checkpoint=False)


class Fault(Exception):
    pass


class Break(Stop):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.place:
            raise Fault


def _interrupted(model: Any, folder: str) -> Any:
    """A training that dies a batch after it was kept."""
    try:
        _fit("arrays", model, _backup(folder), Break(None, 1, 2))
    except Fault:
        return {}
    raise AssertionError("training went on")


def _stepped(
    strategy: Any, kept: Kept | None, epochs: int, stop: int | None = None
) -> dict[str, Any]:
    """train_step on a tf.data.Dataset that reshuffles."""
    import tensorflow as tf

    keras.utils.set_random_seed(3)  # what came before has moved the other ranks' by their number
    data = tf.data.Dataset.from_tensor_slices(arrays(SAMPLES)).shuffle(SAMPLES, seed=9)
    model, optimizer = net(), keras.optimizers.SGD(0.1, momentum=0.9)
    model, optimizer, batches = strategy.prepare(model, optimizer, data.batch(BATCH))
    step = strategy.train_step(model, loss(), optimizer)
    model.optimizer = optimizer
    if kept is not None:
        _load(model, kept)
        batches.load_state_dict(kept["data"])
    for _ in range(epochs):
        for batch in batches:
            step(*batch)
    if stop is not None:
        for count, batch in enumerate(batches, start=1):
            step(*batch)
            if count == stop:
                break
    return _kept(model, strategy.data_state(batches))


def uneven(options: dict[str, Any]) -> list[str]:
    """Generators of which one ends early: it leaves the other waiting."""
    rank = int(os.environ["RANK"])

    def batches() -> Any:
        for _ in range(4 - rank):
            yield arrays(BATCH)

    return _said_of(options, lambda: compiled(net()).fit(batches(), verbose=0))


def unkept(options: dict[str, Any]) -> list[str]:
    """Data whose order is another process's own, or unknown."""

    def unknown() -> None:
        model = compiled(net())
        data, _ = _data("arrays")
        model.fit(*data, batch_size=BATCH, steps_per_epoch=2, verbose=0)
        dream.current().data_state(model)  # type: ignore[union-attr]

    def other_size() -> None:
        model, strategy = compiled(net()), dream.current()
        assert strategy is not None
        state = {**strategy.data_state(model), "batches": 1, "samples": 8}
        strategy.load_data_state(model, state)
        _fit("arrays", model)

    def nothing() -> None:
        dream.current().data_state([1, 2])  # type: ignore[union-attr]

    return _said_of(options, unknown, other_size, nothing)


def _said_of(options: dict[str, Any], *faults: Callable[[], object]) -> list[str]:
    said = []
    for fault in faults:
        with dream.strategy("mirrored", **options):
            try:
                fault()
                said.append("nothing was raised")
            except dream.DreamError as error:
                said.append(f"{type(error).__name__}: {error}")
            except Exception:
                said.append(traceback.format_exc())
    return said
