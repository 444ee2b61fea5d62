"""The same as train_torch.py, by Keras on TensorFlow: FOLDER REDUCTION FATE."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np

import dream

FOLDER, REDUCTION = Path(sys.argv[1]), sys.argv[2]
RANK = os.environ["RANK"]
BEGUN = 3


class Marks(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if batch == BEGUN:
            (FOLDER / f"trains{RANK}").touch()


with dream.strategy("mirrored", reduction=REDUCTION):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
x = np.ones([60_000, 4], np.float32)
model.fit(x, x, batch_size=6, epochs=10_000, verbose=0, callbacks=[Marks()])
