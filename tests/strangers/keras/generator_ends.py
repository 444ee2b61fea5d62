"""A generator that ends by itself: the length of the epoch is not known before."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(27)

x = np.random.randn(50, 4).astype("float32")
y = np.random.randint(0, 3, 50)


def once():
    for start in range(0, 50, 11):
        yield x[start : start + 11], y[start : start + 11]


model = keras.Sequential([keras.Input((4,)), layers.Dense(6, "relu"), layers.Dense(3, "softmax")])
model.compile(keras.optimizers.SGD(0.3), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = []
for _ in range(3):
    log = model.fit(once(), epochs=1, verbose=0)
    history += [log.history["loss"][0], log.history["accuracy"][0]]
history += model.evaluate(once(), verbose=0)
