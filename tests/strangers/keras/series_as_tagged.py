"""Masking and TimeDistributed: the mask weighs the loss of each step, beside weights in time."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(310)

x = np.random.randn(46, 7, 4).astype("float32")
for row, length in zip(x, np.random.randint(0, 8, 46), strict=True):
    row[length:] = 0
y = np.random.randn(46, 7, 2).astype("float32")
w = np.random.uniform(0, 2, (46, 7)).astype("float32")
model = keras.Sequential(
    [
        keras.Input((7, 4)),
        layers.Masking(),
        layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
        layers.TimeDistributed(layers.Dense(2)),
    ]
)
model.compile(
    keras.optimizers.SGD(0.2), keras.losses.Huber(), metrics=["mae"], weighted_metrics=["mse"]
)
log = model.fit(x, y, sample_weight=w, batch_size=12, epochs=3, verbose=0).history
history = [each for name in sorted(log) for each in log[name]]
