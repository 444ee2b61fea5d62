"""A variational autoencoder on the torch backend: train_step with loss.backward()."""

import keras
import numpy as np
import torch
from keras import layers, ops

keras.utils.set_random_seed(34)


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(78)

    def call(self, inputs):
        mean, log_var = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * noise


class VAE(keras.Model):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.kl_tracker = keras.metrics.Mean(name="kl")
        self.built = True

    @property
    def metrics(self):
        return [self.loss_tracker, self.kl_tracker]

    def train_step(self, data):
        mean, log_var, z = self.encoder(data)
        restored = self.decoder(z)
        restoring = ops.mean(ops.sum(ops.square(data - restored), axis=1))
        kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
        divergence = ops.mean(ops.sum(kl, axis=1))
        total = restoring + divergence
        self.zero_grad()
        total.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        self.loss_tracker.update_state(total)
        self.kl_tracker.update_state(divergence)
        return {"loss": self.loss_tracker.result(), "kl": self.kl_tracker.result()}


rows = np.random.rand(67, 10).astype("float32")
inputs = keras.Input((10,))
hidden = layers.Dense(8, activation="relu")(inputs)
z_mean, z_log_var = layers.Dense(2)(hidden), layers.Dense(2)(hidden)
encoder = keras.Model(inputs, [z_mean, z_log_var, Sampling()([z_mean, z_log_var])])
latent = keras.Input((2,))
decoder = keras.Model(latent, layers.Dense(10)(layers.Dense(8, activation="relu")(latent)))

vae = VAE(encoder, decoder)
vae.compile(optimizer=keras.optimizers.SGD(0.02))
log = vae.fit(rows, epochs=2, batch_size=16, verbose=0)

models = [encoder, decoder]
history = [*log.history["loss"], *log.history["kl"]]
