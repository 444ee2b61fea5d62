"""A loop of one's own around train_on_batch and test_on_batch."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(43)

x = np.random.randn(66, 5).astype("float32")
y = np.random.randint(0, 2, (66, 1))
model = keras.Sequential(
    [keras.Input((5,)), layers.Dense(8, "relu"), layers.Dropout(0.3), layers.Dense(1, "sigmoid")]
)
model.compile(keras.optimizers.SGD(0.2), "binary_crossentropy", metrics=["accuracy"])

history = []
for _ in range(2):
    order = np.random.permutation(len(x))
    for start in range(0, len(x), 16):
        chosen = order[start : start + 16]
        history += model.train_on_batch(x[chosen], y[chosen])
    history += model.test_on_batch(x[:25], y[:25])
    model.reset_metrics()
