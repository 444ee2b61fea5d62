"""A layer appends how much the samples of a batch differ, as critics of images are built."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(379)


class Deviation(layers.Layer):
    def call(self, x):
        spread = ops.mean(ops.sqrt(ops.var(x, axis=0) + 1e-3))
        column = ops.broadcast_to(ops.reshape(spread, (1, 1)), (ops.shape(x)[0], 1))
        return ops.concatenate([x, column], axis=-1)

    def compute_output_shape(self, shape):
        return (*shape[:-1], shape[-1] + 1)


x = np.random.randn(75, 6).astype("float32")
y = (np.abs(x).sum(axis=1) > 5).astype("float32")
model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(8, "relu"), Deviation(), layers.Dense(1, "sigmoid")]
)
model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"]]
