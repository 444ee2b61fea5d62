"""Langevin dynamics: an optimizer that adds noise of its own to every step."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(204)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Langevin(keras.optimizers.SGD):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.noise = keras.random.SeedGenerator(6)

    def update_step(self, gradient, variable, learning_rate):
        gradient = gradient + 0.05 * keras.random.normal(variable.shape, seed=self.noise)
        super().update_step(gradient, variable, learning_rate)


model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(8), layers.Dense(1)]
)
model.compile(Langevin(0.05), "mse")
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history["loss"]
