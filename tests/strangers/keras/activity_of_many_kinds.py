"""Activity regularisers: L1 and L2, a function of one's own, sparse codes by their mean."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(107)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


def rare(activations):
    return 0.01 * ops.sum(ops.relu(activations - 0.5))


class Sparse(keras.regularizers.Regularizer):
    def __call__(self, a):
        mean = ops.mean(ops.sigmoid(a), axis=0)
        return 0.05 * ops.sum(0.1 * ops.log(0.1 / mean) + 0.9 * ops.log(0.9 / (1 - mean)))


model = keras.Sequential(
    [
        keras.Input((6,)),
        layers.Dense(9, "relu", activity_regularizer=keras.regularizers.L1L2(0.001, 0.002)),
        layers.Dense(7, activity_regularizer=rare),
        layers.ActivityRegularization(l1=0.001),
        layers.Dense(4, activity_regularizer=Sparse()),
        layers.Dense(1),
    ]
)
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history["loss"]
