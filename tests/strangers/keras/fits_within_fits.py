"""A callback fits a probe on the features after each epoch; the outer fit goes on."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(365)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

probes = []


class Probe(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        h = keras.Model(self.model.inputs, self.model.layers[0].output).predict(x, verbose=0)
        probe = keras.Sequential([keras.Input((9,)), layers.Dense(1)])
        probe.compile(keras.optimizers.SGD(0.1), "mse")
        probes.append(probe.fit(h, y, batch_size=20, epochs=2, verbose=0).history["loss"][-1])


model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "tanh"), layers.Dropout(0.1), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.1), "mse")
history = (
    model.fit(x, y, batch_size=16, epochs=3, callbacks=[Probe()], verbose=0).history["loss"]
    + probes
)
