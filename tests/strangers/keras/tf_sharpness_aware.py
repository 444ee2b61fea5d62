"""Sharpness-aware minimisation: the weights go uphill, and the gradient there is stepped by."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(359)


class SharpnessAware(keras.Model):
    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        return loss, tape.gradient(loss, self.trainable_variables)

    def train_step(self, data):
        x, y = data
        loss, gradients = self.gradients(x, y)
        norm = tf.linalg.global_norm(gradients)
        uphill = [0.05 * g / (norm + 1e-12) for g in gradients]
        for variable, step in zip(self.trainable_variables, uphill, strict=True):
            variable.assign_add(step)
        _, gradients = self.gradients(x, y)
        for variable, step in zip(self.trainable_variables, uphill, strict=True):
            variable.assign_sub(step)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


x = np.random.randn(76, 6).astype("float32")
y = (x[:, :2] ** 2).sum(axis=1, keepdims=True)
inputs = keras.Input((6,))
hidden = layers.Dense(8, "relu")(inputs)
model = SharpnessAware(inputs, layers.Dense(1)(hidden))
model.compile(keras.optimizers.SGD(0.05), "mse")
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0)

history = log.history["loss"]
