"""Adam, dropout and binary answers, as most scripts have them."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(61)

x = np.random.randn(91, 6).astype("float32")
y = (x[:, :2].sum(axis=1) > 0).astype("float32")
model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(12, "relu"), layers.Dropout(0.3), layers.Dense(1, "sigmoid")]
)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
log = model.fit(x, y, batch_size=16, epochs=3, validation_split=0.15, verbose=0)

history = [value for name in sorted(log.history) for value in log.history[name]]
history.append(int(model.optimizer.iterations))
