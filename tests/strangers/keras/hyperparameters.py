"""A random search: settings are drawn, models trained, the best one trained on."""

import random

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(32)

x = np.random.rand(72, 5).astype("float32")
y = np.random.randint(0, 2, 72)
history, best, best_score = [], None, float("inf")
for _ in range(3):
    width = random.choice([4, 6, 8])
    rate = 10 ** random.uniform(-2, -0.5)
    drop = float(np.random.uniform(0, 0.4))
    model = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(width, "relu"),
            layers.Dropout(drop),
            layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "binary_crossentropy")
    log = model.fit(x, y, batch_size=16, epochs=2, validation_split=0.25, verbose=0)
    history += [width, rate, drop, *log.history["loss"]]
    if log.history["val_loss"][-1] < best_score:
        best, best_score = model, log.history["val_loss"][-1]

log = best.fit(x, y, batch_size=10, epochs=1, verbose=0)
model = best
history += [best_score, *log.history["loss"]]
