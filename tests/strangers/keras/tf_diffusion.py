"""A denoising diffusion model: times and noise are drawn in train_step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(72)


class Diffusion(keras.Model):
    def __init__(self, network):
        super().__init__()
        self.network = network
        self.seeds = keras.random.SeedGenerator(5)
        self.noise_loss = keras.metrics.Mean(name="n_loss")

    @property
    def metrics(self):
        return [self.noise_loss]

    def train_step(self, clean):
        batch = ops.shape(clean)[0]
        noises = keras.random.normal(ops.shape(clean), seed=self.seeds)
        times = keras.random.uniform((batch, 1), seed=self.seeds)
        angle = times * np.pi / 2
        mixed = ops.cos(angle) * clean + ops.sin(angle) * noises
        with tf.GradientTape() as tape:
            guessed = self.network([mixed, times], training=True)
            loss = self.compiled_loss_of(noises, guessed)
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.noise_loss.update_state(loss)
        return {m.name: m.result() for m in self.metrics}

    def compiled_loss_of(self, truth, guess):
        return ops.mean(ops.abs(truth - guess))


points = np.random.randn(79, 2).astype("float32") * [1.0, 0.2]
noisy, when = keras.Input((2,)), keras.Input((1,))
h = layers.Dense(12, "swish")(layers.Concatenate()([noisy, when]))
network = keras.Model([noisy, when], layers.Dense(2)(h))
diffusion = Diffusion(network)
diffusion.compile(optimizer=keras.optimizers.SGD(0.1))
log = diffusion.fit(points, batch_size=16, epochs=3, verbose=0)

models = [network]
history = log.history["n_loss"]
