"""A layer whose temperature falls with a count of its training calls."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(202)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Annealed(layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls"
        )

    def call(self, x, training=False):
        if training:
            self.calls.assign(self.calls + 1)
        return ops.tanh(x / (1.0 + 3.0 / (1.0 + ops.cast(self.calls, "float32"))))


model = keras.Sequential([keras.Input((6,)), layers.Dense(9), Annealed(), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history["loss"]
