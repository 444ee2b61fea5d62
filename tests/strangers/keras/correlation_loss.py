"""A loss that looks at the batch as a whole: one minus the correlation."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(62)


def uncorrelated(y_true, y_pred):
    a = y_true - ops.mean(y_true)
    b = y_pred - ops.mean(y_pred)
    return 1.0 - ops.sum(a * b) / ops.sqrt(ops.sum(a * a) * ops.sum(b * b) + 1e-6)


x = np.random.randn(67, 4).astype("float32")
y = x[:, :1] * 2 + x[:, 1:2] ** 2
model = keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), loss=uncorrelated)
log = model.fit(x, y, batch_size=16, epochs=2, verbose=0)

history = log.history["loss"]
