"""Layers that draw noise of several kinds."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(70)

x = np.random.randn(71, 6, 4).astype("float32")
y = np.random.randn(71, 2).astype("float32")
model = keras.Sequential(
    [
        keras.Input((6, 4)),
        layers.GaussianNoise(0.2),
        layers.Conv1D(6, 2, activation="selu"),
        layers.SpatialDropout1D(0.2),
        layers.Dropout(0.3, noise_shape=(None, 1, 6)),
        layers.Flatten(),
        layers.Dense(8, activation="selu"),
        layers.AlphaDropout(0.1),
        layers.GaussianDropout(0.1),
        layers.Dense(2),
    ]
)
model.compile(keras.optimizers.SGD(0.02), "mse")
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0)

history = log.history["loss"]
