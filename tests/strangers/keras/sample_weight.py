"""Old observations count for less: sample_weight, in the validation data too."""

import keras
import numpy as np

keras.utils.set_random_seed(3)

x = np.random.rand(90, 4).astype("float32")
y = x @ np.array([1.0, -2.0, 0.5, 3.0], "float32")
age = np.linspace(0, 3, 90).astype("float32")
weight = np.exp(-age)

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(
    keras.optimizers.SGD(0.1, nesterov=True, momentum=0.8),
    loss="huber",
    metrics=["mae"],
    weighted_metrics=["mse"],
)
log = model.fit(
    x[:70],
    y[:70],
    sample_weight=weight[:70],
    validation_data=(x[70:], y[70:], weight[70:]),
    batch_size=16,
    epochs=3,
    verbose=0,
)
last = model.evaluate(x, y, sample_weight=weight, verbose=0)

history = [value for name in sorted(log.history) for value in log.history[name]] + last
