"""The same by Keras: FOLDER REDUCTION FATE..., on the command line."""

from __future__ import annotations

import os
import sys

import keras
import numpy as np
from where_fates import FATES, FOLDER, stand

import dream

REDUCTION, MINE = sys.argv[2], sys.argv[3:]
RANK = int(os.environ["RANK"])
fate = ""


def compiling() -> None:
    import tensorflow as tf

    tf.function(lambda: stand("compiling"), autograph=False)()


class Numbers(keras.utils.PyDataset):  # type: ignore[misc]  # Keras is untyped
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        if fate == "loader" or (fate == "batch" and index == 2):  # the first is read by fit itself
            stand(fate)
        return np.ones([4, 4], np.float32), np.ones([4, 4], np.float32)


class Callback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if batch != 1:
            return
        if fate == "callback":
            stand(fate)
        elif fate == "compiling":
            compiling()
        elif fate in FATES:
            FATES[fate]()


class Slow(keras.layers.Dense):  # type: ignore[misc]  # Keras is untyped
    def save_own_variables(self, store: object) -> None:
        stand("disk")
        super().save_own_variables(store)


with dream.strategy("mirrored", reduction=REDUCTION):
    model = keras.Sequential([keras.Input([4]), Slow(4)])
    model.compile("sgd", "mse")
for each in ("", *MINE):
    fate = each if RANK == 1 else ""
    if fate == "disk":
        model.save_weights(FOLDER / f"saved{RANK}.weights.h5")
    model.fit(Numbers(), verbose=0, callbacks=[Callback()])
print("done", flush=True)
