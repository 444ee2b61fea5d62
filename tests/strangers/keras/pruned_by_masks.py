"""Magnitude pruning: a callback sets masks, and multiplies weights by them after each batch."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(307)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Prune(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.masks = {}

    def on_epoch_begin(self, epoch, logs=None):
        for layer in self.model.layers:
            if isinstance(layer, layers.Dense):
                w = ops.convert_to_numpy(layer.kernel)
                self.masks[layer.name] = (np.abs(w) >= np.quantile(np.abs(w), 0.15 * epoch)).astype(
                    "float32"
                )

    def on_train_batch_end(self, batch, logs=None):
        for layer in self.model.layers:
            if layer.name in self.masks:
                layer.kernel.assign(layer.kernel * self.masks[layer.name])


model = keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
history = model.fit(x, y, batch_size=13, epochs=4, callbacks=[Prune()], verbose=0).history["loss"]
