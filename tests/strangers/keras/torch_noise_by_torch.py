"""A layer draws by torch's own functions: noise while it trains, and a mask."""

import keras
import numpy as np
import torch
from keras import layers

keras.utils.set_random_seed(337)


class Noisy(layers.Layer):
    def call(self, inputs, training=None):
        if not training:
            return inputs
        noisy = inputs + 0.2 * torch.randn_like(inputs)
        return torch.nn.functional.dropout(noisy, 0.25, training=True)


x = np.random.randn(75, 6).astype("float32")
y = x @ np.random.randn(6, 2).astype("float32")
model = keras.Sequential([layers.Dense(12, "relu"), Noisy(), layers.Dense(2)])
model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse", metrics=["mae"])
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0)

history = [v for name in ("loss", "mae") for v in log.history[name]]
