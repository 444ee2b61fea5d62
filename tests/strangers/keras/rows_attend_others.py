"""A tabular transformer whose rows attend to the other rows of their batch; predictions by it."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(367)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Rows(layers.Layer):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = layers.Dense(4), layers.Dense(4), layers.Dense(6)

    def call(self, x):
        a = ops.softmax(ops.matmul(self.q(x), ops.transpose(self.k(x))), axis=-1)
        return x + ops.matmul(a, self.v(x))


model = keras.Sequential([keras.Input((6,)), Rows(), layers.Dense(1)])
history = [float(v) for v in model.predict(x, batch_size=62, verbose=0)[:, 0]]
