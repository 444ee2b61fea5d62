"""Diffusion as keras.io has it: Normalization, a network that follows, a loss per pixel."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(331)

x = np.random.rand(40, 8, 8, 1).astype("float32")


class Diffusion(keras.Model):
    def __init__(self):
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = net()
        self.ema_network = keras.models.clone_model(self.network)

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.noise_loss = keras.metrics.Mean(name="n_loss")
        self.image_loss = keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self):
        return [self.noise_loss, self.image_loss]

    def noised(self, images):
        n = tf.shape(images)[0]
        noises = keras.random.normal(ops.shape(images), seed=seeds)
        times = keras.random.uniform((n, 1, 1, 1), seed=seeds)
        angle = 0.2 + times
        return (
            ops.cos(angle) * images + ops.sin(angle) * noises,
            noises,
            ops.cos(angle),
            ops.sin(angle),
        )

    def train_step(self, images):
        images = self.normalizer(images, training=True)
        mixed, noises, signal, noise = self.noised(images)
        with tf.GradientTape() as tape:
            guess = self.network([mixed, noise**2], training=True)
            loss = self.loss(noises, guess)
        grads = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.network.trainable_weights))
        self.noise_loss.update_state(loss)
        self.image_loss.update_state(self.loss(images, (mixed - noise * guess) / signal))
        for weight, ema in zip(self.network.weights, self.ema_network.weights):
            ema.assign(0.9 * ema + 0.1 * weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, images):
        images = self.normalizer(images, training=False)
        mixed, noises, _signal, noise = self.noised(images)
        guess = self.ema_network([mixed, noise**2], training=False)
        self.noise_loss.update_state(self.loss(noises, guess))
        return {m.name: m.result() for m in self.metrics}


def net():
    a, b = keras.Input((8, 8, 1)), keras.Input((1, 1, 1))
    e = layers.UpSampling2D(8)(b)
    h = layers.Conv2D(6, 3, padding="same", activation="swish")(layers.Concatenate()([a, e]))
    h = layers.BatchNormalization(center=False, scale=False)(h)
    return keras.Model([a, b], layers.Conv2D(1, 1)(h))


seeds = keras.random.SeedGenerator(4)
model = Diffusion()
model.compile(optimizer=keras.optimizers.SGD(0.0003), loss=keras.losses.mean_absolute_error)
model.normalizer.adapt(x)
data = (
    tf.data.Dataset.from_tensor_slices(x)
    .cache()
    .repeat(2)
    .shuffle(80, seed=1)
    .batch(12, drop_remainder=False)
)
log = model.fit(
    data, epochs=2, validation_data=tf.data.Dataset.from_tensor_slices(x[:18]).batch(7), verbose=0
).history
history = [each for name in sorted(log) for each in log[name]]
