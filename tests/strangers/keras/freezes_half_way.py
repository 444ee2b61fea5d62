"""Layers are frozen and released between fits, and by a callback in the midst of one."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(105)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Freeze(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.layers[0].trainable = False


model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "tanh"), layers.Dense(5, "relu"), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
history = model.fit(x, y, batch_size=16, epochs=3, callbacks=[Freeze()], verbose=0).history["loss"]
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
history += model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
model.layers[0].trainable = True
model.compile(keras.optimizers.SGD(0.02), "mse")
history += model.fit(x, y, batch_size=16, epochs=1, verbose=0).history["loss"]
