"""An endless generator, steps_per_epoch, and one for validation."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(111)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


def batches(seed, size):
    draw = np.random.default_rng(seed)
    while True:
        rows = draw.choice(62, size, replace=False)
        yield x[rows], y[rows], draw.uniform(0.5, 1.5, size).astype("float32")


model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "relu"), layers.Dropout(0.2), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", weighted_metrics=["mae"])
log = model.fit(
    batches(1, 13),
    steps_per_epoch=4,
    epochs=3,
    validation_data=batches(2, 9),
    validation_steps=2,
    verbose=0,
).history
history = [each for name in sorted(log) for each in log[name]]
