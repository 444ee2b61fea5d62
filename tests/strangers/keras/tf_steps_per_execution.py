"""Several steps to an execution, and metrics that count."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(77)

x = np.random.randn(103, 5).astype("float32")
y = (x[:, :1] + 0.3 * np.random.randn(103, 1) > 0).astype("int32")
model = keras.Sequential(
    [keras.Input((5,)), layers.Dense(8, "relu"), layers.Dropout(0.2), layers.Dense(1, "sigmoid")]
)
model.compile(
    keras.optimizers.SGD(0.2, momentum=0.9),
    "binary_focal_crossentropy",
    metrics=["AUC", keras.metrics.F1Score(threshold=0.5)],
    steps_per_execution=3,
)
log = model.fit(x, y, batch_size=12, epochs=2, verbose=0)

history = log.history["loss"] + log.history["AUC"]
history += [float(np.ravel(value)[0]) for value in log.history["f1_score"]]
