"""A layer adds a sum over the batch to the loss, and a penalty of its own weights."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(22)


class Sparse(layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.dense = layers.Dense(units, activation="relu")

    def build(self, shape):
        self.dense.build(shape)

    def call(self, inputs):
        out = self.dense(inputs)
        self.add_loss(1e-3 * ops.sum(out))
        self.add_loss(1e-2 * ops.sum(ops.square(self.dense.kernel)))
        return out


x = np.random.randn(78, 5).astype("float32")
y = np.random.randn(78, 2).astype("float32")
model = keras.Sequential([keras.Input((5,)), Sparse(8), layers.Dense(2)])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
log = model.fit(x, y, batch_size=20, epochs=3, verbose=0)

history = log.history["loss"]
