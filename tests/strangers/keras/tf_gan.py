"""A GAN: two optimizers and two tapes in one train_step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(2024)
latent_dim = 4


class GAN(keras.Model):
    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator = generator
        self.discriminator = discriminator
        self.seeds = keras.random.SeedGenerator(1)
        self.d_metric = keras.metrics.Mean(name="d_loss")
        self.g_metric = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        return [self.d_metric, self.g_metric]

    def train_step(self, real):
        batch = ops.shape(real)[0]
        fake = self.generator(keras.random.normal((batch, latent_dim), seed=self.seeds))
        both = ops.concatenate([fake, real], axis=0)
        labels = ops.concatenate([ops.ones((batch, 1)), ops.zeros((batch, 1))], axis=0)
        labels += 0.05 * keras.random.uniform(ops.shape(labels), seed=self.seeds)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)

        noise = keras.random.normal((batch, latent_dim), seed=self.seeds)
        with tf.GradientTape() as tape:
            verdict = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(ops.zeros((batch, 1)), verdict)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_metric.update_state(d_loss)
        self.g_metric.update_state(g_loss)
        return {"d_loss": self.d_metric.result(), "g_loss": self.g_metric.result()}


points = np.random.randn(71, 6).astype("float32") * 0.5 + 1.0
discriminator = keras.Sequential(
    [keras.Input((6,)), layers.Dense(8), layers.LeakyReLU(), layers.Dense(1)]
)
generator = keras.Sequential(
    [keras.Input((latent_dim,)), layers.Dense(8, activation="relu"), layers.Dense(6)]
)
gan = GAN(generator, discriminator)
gan.compile(
    d_optimizer=keras.optimizers.SGD(0.05),
    g_optimizer=keras.optimizers.SGD(0.05),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
log = gan.fit(points, batch_size=16, epochs=2, verbose=0)

models = [generator, discriminator]
history = [*log.history["d_loss"], *log.history["g_loss"]]
