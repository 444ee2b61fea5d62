"""train_on_batch with weights and rates by the loss it returned, test_on_batch, reset_metrics."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(116)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "relu"), layers.Dropout(0.2), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
weight = np.random.uniform(0, 2, 62).astype("float32")
history = []
for _ in range(2):
    model.reset_metrics()
    for start in range(0, 62, 13):
        rows = slice(start, start + 13)
        logs = model.train_on_batch(x[rows], y[rows], sample_weight=weight[rows], return_dict=True)
        model.optimizer.learning_rate.assign(0.1 / (1 + float(logs["loss"])))
        history += [float(logs["loss"]), float(logs["mae"])]
    history += [float(v) for v in model.test_on_batch(x[:11], y[:11])]
    history += [float(model.predict_on_batch(x[:3]).sum())]
