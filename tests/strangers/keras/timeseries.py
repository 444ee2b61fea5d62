"""Forecasts from windows that keras.utils cuts and shuffles."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(69)

series = np.sin(np.arange(95) / 5)[:, None] + np.random.randn(95, 2) * 0.1
series = series.astype("float32")
windows = keras.utils.timeseries_dataset_from_array(
    series[:-6], targets=series[6:, 0], sequence_length=6, batch_size=16, shuffle=True, seed=3
)
held_out = keras.utils.timeseries_dataset_from_array(
    series[60:-6], targets=series[66:, 0], sequence_length=6, batch_size=16
)
inputs = keras.Input((6, 2))
h = layers.Conv1D(6, 3, activation="relu")(inputs)
model = keras.Model(inputs, layers.Dense(1)(layers.LSTM(5)(h)))
model.compile(keras.optimizers.SGD(0.1), "mse")
log = model.fit(windows, epochs=3, validation_data=held_out, verbose=0)

history = [*log.history["loss"], *log.history["val_loss"]]
