"""A Wasserstein GAN: two critic steps to one, each with a penalty on gradients at mixed samples."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(321)
size = 3


class WGAN(keras.Model):
    def __init__(self, critic, generator):
        super().__init__()
        self.critic, self.generator = critic, generator
        self.draws = keras.random.SeedGenerator(8)

    def compile(self, of_critic, of_generator):
        super().compile()
        self.of_critic, self.of_generator = of_critic, of_generator

    def penalty(self, count, real, fake):
        share = keras.random.uniform((count, 1), seed=self.draws)
        between = real + share * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            verdict = self.critic(between, training=True)
        norm = tf.sqrt(tf.reduce_sum(tape.gradient(verdict, between) ** 2, axis=1) + 1e-12)
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, real):
        count = tf.shape(real)[0]
        for _ in range(2):
            noise = keras.random.normal((count, size), seed=self.draws)
            with tf.GradientTape() as tape:
                fake = self.generator(noise, training=True)
                gap = tf.reduce_mean(self.critic(fake)) - tf.reduce_mean(self.critic(real))
                d_loss = gap + 10.0 * self.penalty(count, real, fake)
            weights = self.critic.trainable_variables
            self.of_critic.apply_gradients(zip(tape.gradient(d_loss, weights), weights))
        noise = keras.random.normal((count, size), seed=self.draws)
        with tf.GradientTape() as tape:
            g_loss = -tf.reduce_mean(self.critic(self.generator(noise, training=True)))
        weights = self.generator.trainable_variables
        self.of_generator.apply_gradients(zip(tape.gradient(g_loss, weights), weights))
        return {"d_loss": d_loss, "g_loss": g_loss}


points = np.random.randn(70, 5).astype("float32") * 0.4 + 1
critic = keras.Sequential([keras.Input((5,)), layers.Dense(8, "tanh"), layers.Dense(1)])
generator = keras.Sequential([keras.Input((size,)), layers.Dense(8, "tanh"), layers.Dense(5)])
wgan = WGAN(critic, generator)
wgan.compile(keras.optimizers.SGD(0.02), keras.optimizers.SGD(0.02))
log = wgan.fit(points, batch_size=16, epochs=2, verbose=0)

models = [critic, generator]
history = [*log.history["d_loss"], *log.history["g_loss"]]
