"""Barlow twins: a correlation over the batch, in a train_step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(337)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Twins(keras.Model):
    def train_step(self, data):
        x, _ = data
        a = x + 0.1 * keras.random.normal(ops.shape(x), seed=1)
        b = x - 0.1 * keras.random.normal(ops.shape(x), seed=2)
        with tf.GradientTape() as tape:
            u, v = self(a, training=True), self(b, training=True)
            u = (u - ops.mean(u, 0)) / ops.std(u, 0)
            v = (v - ops.mean(v, 0)) / ops.std(v, 0)
            c = ops.matmul(ops.transpose(u), v) / ops.cast(ops.shape(x)[0], "float32")
            loss = ops.sum(ops.square(c - ops.eye(3)))
        self.optimizer.apply(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables
        )
        return {"loss": loss}


seen = keras.Input((6,))
model = Twins(seen, layers.Dense(3)(layers.Dense(9, "tanh")(seen)))
model.compile(keras.optimizers.SGD(0.05))
model.fit(x, y, batch_size=16, epochs=2, verbose=0)
