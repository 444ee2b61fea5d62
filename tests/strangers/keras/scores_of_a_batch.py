"""Metrics as functions that give one number for a batch: F1 and a root error."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(302)

x = np.random.randn(62, 6).astype("float32")
y = (x[:, :1] + 0.3 * np.random.randn(62, 1) > 0.5).astype("float32")


def f1(y_true, y_pred):
    guess = ops.round(y_pred)
    hits = ops.sum(y_true * guess)
    precision = hits / (ops.sum(guess) + 1e-7)
    recall = hits / (ops.sum(y_true) + 1e-7)
    return 2 * precision * recall / (precision + recall + 1e-7)


def rmse(y_true, y_pred):
    return ops.sqrt(ops.mean(ops.square(y_true - y_pred)))


model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "relu"), layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.SGD(0.3), "binary_crossentropy", metrics=[f1, rmse])
log = model.fit(x, y, batch_size=16, epochs=3, validation_data=(x[:23], y[:23]), verbose=0).history
history = [each for name in sorted(log) for each in log[name]]
