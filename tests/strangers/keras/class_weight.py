"""Fraud is rare: class_weight, and metrics that count."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(99)

x = np.random.randn(113, 6).astype("float32")
y = (x[:, 0] + x[:, 1] > 1.9).astype("int32")[:, None]
rare, common = 1.0 / y.sum(), 1.0 / (len(y) - y.sum())

model = keras.Sequential(
    [
        keras.Input((6,)),
        layers.Dense(9, activation="relu"),
        layers.Dropout(0.3),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(
    optimizer=keras.optimizers.SGD(1.0),
    loss="binary_crossentropy",
    metrics=[
        keras.metrics.FalseNegatives(name="fn"),
        keras.metrics.TruePositives(name="tp"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
    ],
)
log = model.fit(
    x,
    y,
    batch_size=32,
    epochs=3,
    class_weight={0: common, 1: rare},
    validation_split=0.2,
    verbose=0,
)

history = [value for name in sorted(log.history) for value in log.history[name]]
