"""Layers made in keras.RematScope compute their activations again in backward."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(361)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

with keras.RematScope(mode="full"):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(9, "tanh"),
            layers.BatchNormalization(),
            layers.Dense(9, "relu"),
            layers.Dense(1),
        ]
    )
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history["loss"]
