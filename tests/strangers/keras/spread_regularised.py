"""A penalty on the batch: activity_regularizer of a correlation, and KL sparse activity."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(355)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Decov(keras.regularizers.Regularizer):
    def __call__(self, h):
        c = h - ops.mean(h, axis=0)
        c = ops.matmul(ops.transpose(c), c) / 10.0
        return 0.01 * ops.sum(ops.square(c))


model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "tanh", activity_regularizer=Decov()), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
