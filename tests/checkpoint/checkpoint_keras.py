"""A fit that is ended at some step, and begun again: what it has learned, and told."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import dream

SAMPLES, BATCH, EPOCHS = 61, 16, 3


class Ended(Exception):
    pass


class EndAt(keras.callbacks.Callback):
    """Ends the process's training, as a fault would, before a batch of all."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self.left:
            raise Ended
        self.left -= 1


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    y = rng.integers(0, 3, SAMPLES)
    return (rng.normal(size=(SAMPLES, 8)) + y[:, None]).astype("float32"), y


def net(seen: int, rate: float) -> Any:
    for _ in range(seen):
        keras.layers.Dense(2)  # names are counted through a process
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(rate), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.01), loss, metrics=["accuracy"])
    return model


def train(
    word: str, options: dict[str, Any], folder: str, *, every: Any = 3, end: int = -1,
    rate: float = 0.3, seen: int = 0, shuffle: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """What fit has told, and the model's state. end: after how many batches of this process."""
    with dream.strategy(word, **options) as strategy:
        model = net(seen, rate)
        slow = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.5)
        callbacks = [dream.keras.Checkpoint(folder, every=every), slow]
        history: dict[str, Any] = {}
        try:
            x, y = data()
            told = model.fit(
                x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, shuffle=shuffle,
                callbacks=[*callbacks, EndAt(end)],
            )  # fmt: skip
            history = {"epoch": told.epoch, **told.history}
        except Ended:
            pass
        state = [np.array(v) for v in model.weights]
        slots = [np.array(v) for v in model.optimizer.variables]
        rank = strategy.topology.rank
    return {"rank": rank, "history": history, "weights": state, "optimizer": slots}


def several(
    word: str, _: dict[str, Any], folder: str, *, trainings: dict[str, tuple[dict[str, Any], Any]]
) -> dict[str, dict[str, Any]]:
    """By name what trainings have told, each in a folder of its own. trainings: the options of the
    strategy, and of `train`."""
    found = {}
    for name, (options, more) in trainings.items():
        _saver()._fits.clear()
        found[name] = train(word, options, f"{folder}/{name}", **more)
    return found


def refused(word: str, options: dict[str, Any], folder: str) -> dict[str, str]:
    """By case what was said, "taken", or what had been changed all the same."""
    found = {}
    train(word, options, f"{folder}/fit", end=5)
    outside = net(0, 0.3)
    with dream.strategy(word, **options) as strategy:
        saved = net(0, 0.3)
        strategy.save(f"{folder}/saved", step=1, model=saved, optimizer=saved.optimizer)
        x, y = data()
        stop = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
        backup = keras.callbacks.BackupAndRestore(f"{folder}/backup")
        stream = ((x, y) for _ in range(EPOCHS))
        cases: dict[str, tuple[Any, ...]] = {
            "model": ("fit", wider(), x, y),
            "batch": ("fit", net(0, 0.3), x, y, {"batch_size": 8}),
            "length": ("fit", net(0, 0.3), x[:50], y[:50]),
            "generator": ("fit", net(0, 0.3), stream, None, {"batch_size": None}),
            "outside": ("fit", outside, x, y),
            "saved": ("saved", net(0, 0.3), x, y),
            "best": ("fit", net(0, 0.3), x, y, {"callbacks": [stop]}),
            "several": ("several", net(0, 0.3), x, y),
            "two": ("fit", net(0, 0.3), x, y, {"callbacks": [backup]}),
        }
        _saver()._fits.clear()
        for _ in range(2):
            kept = dream.keras.Checkpoint(f"{folder}/several")
            net(0, 0.3).fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=[kept])
        for name, case in cases.items():
            found[name] = _said(folder, *case)
    for name, given in (("every", {"every": 0}), ("keep", {"keep": 0})):
        try:
            dream.keras.Checkpoint(folder, **given)
        except dream.ConfigurationError as error:
            found[name] = str(error)
    return found


def wider() -> Any:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(17), keras.layers.Dense(3)])
    model.compile(keras.optimizers.AdamW(0.01), "sparse_categorical_crossentropy")
    return model


def _said(folder: str, place: str, model: Any, x: Any, y: Any, more: Any = None) -> str:
    before = model.get_weights()
    given = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, "callbacks": [], **(more or {})}
    # a folder's first fit is the script's first: each case is a script of its own
    path = f"{folder}/{place}"
    _saver()._fits.clear()
    given["callbacks"] = [*given["callbacks"], dream.keras.Checkpoint(path)]
    try:
        model.fit(x, y, **given)
    except dream.DreamError as error:
        same = all(map(np.array_equal, before, model.get_weights()))
        return str(error) if same else f"changed all the same: {error}"
    return "taken"


def _saver() -> Any:
    from dream.adapters.keras.checkpoint import saver

    return saver


def again(word: str, options: dict[str, Any], folder: str) -> dict[str, Any]:
    """Two fits of one script with one folder, then the script once more: what was trained."""
    trained = []
    for _ in range(2):
        _saver()._fits.clear()
        with dream.strategy(word, **options):
            model = net(0, 0.0)
            for epochs in (1, 2):
                kept = dream.keras.Checkpoint(folder)
                told = model.fit(*data(), batch_size=BATCH, epochs=epochs, verbose=0,
                                 callbacks=[kept])  # fmt: skip
            trained.append([np.array(v) for v in model.weights])
            steps = int(model.optimizer.iterations)
    return {"weights": trained, "steps": steps, "epochs": told.epoch}
