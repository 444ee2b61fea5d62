"""The same as train_torch.py, by Keras on TensorFlow: FOLDER REDUCTION FATE [BATCHES SLOW]."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np

import dream
from dream.stall import watcher

FOLDER, REDUCTION = Path(sys.argv[1]), sys.argv[2]
RANK = os.environ["RANK"]
BEGUN = 3


class Marks(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if batch == BEGUN:
            (FOLDER / f"trains{RANK}").touch()


def late(part: str) -> None:
    if sys.argv[3:6:2] == ["late", part] and RANK == "1":
        time.sleep(0.03)


class Numbers(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return int(sys.argv[4])

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        late("input")
        return x[:6], x[:6]


class Late(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        late("own")


x = np.ones([60_000, 4], np.float32)
if sys.argv[3] == "late":
    watcher._LONGEST_LOOK = 0.05
with dream.strategy("mirrored", reduction=REDUCTION):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
if sys.argv[3] == "late":
    model.fit(Numbers(), verbose=0, callbacks=[Late()])
else:
    model.fit(x, x, batch_size=6, epochs=10_000, verbose=0, callbacks=[Marks()])
