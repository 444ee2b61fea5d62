"""A layer that runs its own recurrence by ops.scan, and one by fori_loop."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(119)


class Leaky(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 5), name="kernel")
        self.leak = self.add_weight(shape=(5,), initializer="zeros", name="leak")

    def call(self, x):
        taken = ops.transpose(ops.matmul(x, self.kernel), (1, 0, 2))
        keep = ops.sigmoid(self.leak)

        def step(state, now):
            state = keep * state + (1 - keep) * ops.tanh(now)
            return state, state

        last, every = ops.scan(step, ops.zeros_like(taken[0]), taken)
        return last + ops.mean(every, axis=0)


class Iterated(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")

    def call(self, x):
        state = x
        for _ in range(3):
            state = ops.tanh(ops.matmul(state, self.kernel)) + x
        return state


x = np.random.randn(62, 8, 3).astype("float32")
y = x.mean(axis=1)[:, :1]
model = keras.Sequential([keras.Input((8, 3)), Leaky(), Iterated(), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history["loss"]
