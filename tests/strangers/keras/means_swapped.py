"""SwapEMAWeights: validation by averaged weights, and CSVLogger; overwritten at the end."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(321)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "tanh"), layers.BatchNormalization(), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8), "mse")
calls = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True), keras.callbacks.CSVLogger("log.csv")]
log = model.fit(
    x, y, batch_size=16, epochs=3, validation_data=(x[:17], y[:17]), callbacks=calls, verbose=0
).history
history = [each for name in sorted(log) for each in log[name]]
