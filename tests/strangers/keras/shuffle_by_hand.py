"""shuffle=False, because the script shuffles by itself before each epoch."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(6)
keras.utils.set_random_seed(84)

x = rng.normal(size=(70, 5)).astype("float32")
y = rng.normal(size=(70, 1)).astype("float32")
model = keras.Sequential([keras.Input((5,)), layers.Dense(8, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
history = []
for _ in range(4):
    order = rng.permutation(70)
    log = model.fit(x[order], y[order], batch_size=16, shuffle=False, verbose=0)
    history += log.history["loss"]
    x = x + rng.normal(scale=0.01, size=x.shape).astype("float32")
