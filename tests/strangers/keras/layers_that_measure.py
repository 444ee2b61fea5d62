"""Layers keep metrics of their own: the mean of activations and of gates, in the log of fit."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(347)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Measured(layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(9, "relu")
        self.level = keras.metrics.Mean(name="level")
        self.alive = keras.metrics.Mean(name="alive")

    def call(self, x):
        h = self.dense(x)
        self.level.update_state(h)
        self.alive.update_state(ops.mean(ops.cast(h > 0, "float32")))
        return h


seen = keras.Input((6,))
model = keras.Model(seen, layers.Dense(1)(Measured()(seen)))
model.compile(keras.optimizers.SGD(0.1), "mse")
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history
history = [each for name in sorted(log) for each in log[name]]
