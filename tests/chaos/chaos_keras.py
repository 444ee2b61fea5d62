"""Trains in Keras until something ends it. On the command line: FOLDER NAME OPTIONS-AS-JSON."""

from __future__ import annotations

import json
import os
import sys

import keras
import numpy as np
from chaos_marks import Marks

import dream


class Mark(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self._marks = marks

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self._marks.step()


def main() -> None:
    folder, name, options = sys.argv[1:]
    marks = Marks(folder, int(os.environ["RANK"]))
    with dream.strategy(name, **json.loads(options)):
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        x = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
        model.fit(x, x, batch_size=16, epochs=1_000_000, verbose=0, callbacks=[Mark(marks)])


main()
