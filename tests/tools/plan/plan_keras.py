"""Models that the tests of plans build, in Keras."""

import keras
import numpy as np
from keras import layers


def dense():
    return keras.Sequential(
        [keras.Input((20,)), layers.Dense(64, activation="relu"), layers.Dense(3)]
    )


def images():
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def compiled():
    model = dense()
    model.compile("adam", "mse")
    return model, (np.ones((4, 20), "float32"), np.ones((4,), "int32"))


def huge():
    sizes = [layers.Dense(10**6) for _ in range(10)]
    return keras.Sequential([keras.Input((10**6,)), *sizes])
