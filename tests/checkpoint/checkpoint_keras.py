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
