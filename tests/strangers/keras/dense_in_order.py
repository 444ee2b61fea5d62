"""Nothing is random but the start: samples in order, a mean over samples, the last batch uneven."""

import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.normal(size=(47, 5)).astype("float32")
y = (x @ np.random.normal(size=(5, 2))).astype("float32")
model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
fit = model.fit(x, y, batch_size=10, epochs=3, shuffle=False, verbose=0)
history = [value for values in fit.history.values() for value in values]
