"""A VAE whose divergence is weighed by a variable that a callback raises."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(308)

x = np.random.rand(50, 8).astype("float32")


class Annealed(keras.Model):
    def __init__(self):
        super().__init__()
        self.beta = keras.Variable(0.0, trainable=False, name="beta")
        self.encoder = layers.Dense(6, "relu")
        self.mean, self.log = layers.Dense(2), layers.Dense(2)
        self.decoder = keras.Sequential([layers.Dense(6, "relu"), layers.Dense(8, "sigmoid")])
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, x, training=False):
        h = self.encoder(x)
        mean, log = self.mean(h), self.log(h)
        self.add_loss(
            self.beta * ops.mean(-0.5 * ops.sum(1 + log - ops.square(mean) - ops.exp(log), axis=-1))
        )
        z = (
            mean + ops.exp(0.5 * log) * keras.random.normal(ops.shape(mean), seed=self.seeds)
            if training
            else mean
        )
        return self.decoder(z)


class Raise(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.beta.assign(min(1.0, epoch / 2))


model = Annealed()
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
history = model.fit(x, x, batch_size=16, epochs=4, callbacks=[Raise()], verbose=0).history["loss"]
