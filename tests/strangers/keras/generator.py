"""An endless generator that draws its own batches; steps_per_epoch ends the epoch."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(26)

x = np.random.randn(64, 3).astype("float32")
y = np.linalg.norm(x, axis=1, keepdims=True)


def batches(size):
    while True:
        chosen = np.random.choice(len(x), size, replace=False)
        yield x[chosen], y[chosen]


model = keras.Sequential([keras.Input((3,)), layers.Dense(10, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
log = model.fit(
    batches(13), steps_per_epoch=5, epochs=3, validation_data=batches(7), validation_steps=2,
    verbose=0,
)  # fmt: skip

history = [value for name in sorted(log.history) for value in log.history[name]]
