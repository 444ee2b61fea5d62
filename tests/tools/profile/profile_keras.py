"""The same by Keras, on either backend: MILLISECONDS REDUCTION."""

import os
import sys
import time

import keras
import numpy as np

import dream

LAST = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1


class Slow(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if LAST:
            time.sleep(float(sys.argv[1]) / 1000)


with dream.strategy("mirrored", reduction=sys.argv[2]):
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones([64, 8], np.float32)
model.fit(x, x[:, :1], batch_size=8, epochs=10, verbose=0, callbacks=[Slow()])
print("not reached")
