"""A variational autoencoder with a train_step of its own; the loss is a sum over pixels."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(33)


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(77)

    def call(self, inputs):
        mean, log_var = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * noise


class VAE(keras.Model):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.total = keras.metrics.Mean(name="total_loss")
        self.restoring = keras.metrics.Mean(name="reconstruction_loss")
        self.divergence = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total, self.restoring, self.divergence]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_var, z = self.encoder(data)
            restored = self.decoder(z)
            per_image = ops.sum(keras.losses.binary_crossentropy(data, restored), axis=(1, 2))
            restoring = ops.mean(per_image)
            kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
            divergence = ops.mean(ops.sum(kl, axis=1))
            total = restoring + divergence
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(total, weights), weights, strict=True))
        self.total.update_state(total)
        self.restoring.update_state(restoring)
        self.divergence.update_state(divergence)
        return {
            "loss": self.total.result(),
            "reconstruction_loss": self.restoring.result(),
            "kl_loss": self.divergence.result(),
        }


pictures = np.random.rand(67, 8, 8, 1).astype("float32")
image = keras.Input((8, 8, 1))
features = layers.Flatten()(layers.Conv2D(4, 3, strides=2, activation="relu")(image))
z_mean, z_log_var = layers.Dense(2)(features), layers.Dense(2)(features)
encoder = keras.Model(image, [z_mean, z_log_var, Sampling()([z_mean, z_log_var])])
latent = keras.Input((2,))
pixels = layers.Dense(64, activation="sigmoid")(latent)
decoder = keras.Model(latent, layers.Reshape((8, 8, 1))(pixels))

vae = VAE(encoder, decoder)
vae.compile(optimizer=keras.optimizers.SGD(0.01))
log = vae.fit(pictures, epochs=2, batch_size=16, verbose=0)

models = [encoder, decoder]
history = [value for name in sorted(log.history) for value in log.history[name]]
