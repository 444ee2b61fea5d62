"""A variational autoencoder for any backend: a layer draws, and adds the summed divergence."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(91)


class Latent(layers.Layer):
    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.mean = layers.Dense(size)
        self.log_var = layers.Dense(size)
        self.seed = keras.random.SeedGenerator(4)

    def build(self, shape):
        self.mean.build(shape)
        self.log_var.build(shape)

    def call(self, features):
        mean, log_var = self.mean(features), self.log_var(features)
        kl = -0.5 * ops.sum(1 + log_var - ops.square(mean) - ops.exp(log_var), axis=-1)
        self.add_loss(0.01 * ops.sum(kl))
        return mean + ops.exp(log_var / 2) * keras.random.normal(ops.shape(mean), seed=self.seed)


curves = np.random.randn(75, 14).astype("float32")
model = keras.Sequential(
    [
        keras.Input((14,)),
        layers.Dense(10, activation="tanh"),
        Latent(3),
        layers.Dense(10, activation="tanh"),
        layers.Dense(14),
    ]
)
model.compile(keras.optimizers.SGD(0.05), loss="mean_squared_error")
log = model.fit(curves, curves, batch_size=20, epochs=3, verbose=0)

history = log.history["loss"]
