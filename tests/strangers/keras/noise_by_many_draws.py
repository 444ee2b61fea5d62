"""A layer that draws whole numbers, choices, gammas and masks for its samples."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(130)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Draws(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(4)

    def call(self, x, training=False):
        if not training:
            return x
        rows = ops.shape(x)[0]
        sign = 2 * ops.cast(keras.random.randint((rows, 1), 0, 2, seed=self.seed), "float32") - 1
        scale = keras.random.gamma((rows, 6), 50.0, seed=self.seed) / 50.0
        which = keras.random.categorical(ops.zeros((rows, 3)), 1, seed=self.seed)
        shift = 0.1 * ops.cast(which, "float32")
        keep = keras.random.binomial((rows, 6), 1.0, 0.9, seed=self.seed)
        return (
            x * scale * keep * (1 + 0.01 * sign)
            + shift
            + keras.random.truncated_normal((6,), stddev=0.1, seed=self.seed)
        )


model = keras.Sequential([keras.Input((6,)), Draws(), layers.Dense(9, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history["loss"]
