"""Keras's metrics in one fit: areas, quantiles, confusion."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(306)

x = np.random.randn(90, 6).astype("float32")
y = (x[:, :1] + 0.5 * np.random.randn(90, 1) > 0).astype("float32")
model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(1, "sigmoid")])
model.compile(
    keras.optimizers.SGD(0.2),
    "binary_crossentropy",
    metrics=[
        keras.metrics.AUC(name="auc"),
        keras.metrics.AUC(curve="PR", name="pr"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.RecallAtPrecision(0.7, name="rap"),
        keras.metrics.F1Score(threshold=0.5, average="micro", name="f1"),
        keras.metrics.RootMeanSquaredError(name="rmse"),
        keras.metrics.R2Score(name="r2"),
        keras.metrics.BinaryIoU(name="iou"),
        keras.metrics.FalsePositives(name="fp"),
        keras.metrics.LogCoshError(name="cosh"),
    ],
)
log = model.fit(x, y, batch_size=16, epochs=2, validation_data=(x[:37], y[:37]), verbose=0)

history = [v for name in sorted(log.history) for v in np.ravel(log.history[name])]
