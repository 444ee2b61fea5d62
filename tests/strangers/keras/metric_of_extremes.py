"""A metric of one's own that keeps the worst error it has seen."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(307)


class Worst(keras.metrics.Metric):
    def __init__(self, name="worst"):
        super().__init__(name=name)
        self.worst = self.add_weight(shape=(), initializer="zeros", name="worst")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.worst.assign(ops.maximum(self.worst, ops.max(ops.abs(y_true - y_pred))))

    def result(self):
        return self.worst


x = np.random.randn(70, 5).astype("float32")
y = np.random.randn(70, 1).astype("float32")
model = keras.Sequential([keras.Input((5,)), layers.Dense(6, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05), "mse", metrics=[Worst()])
log = model.fit(x, y, batch_size=16, epochs=2, verbose=0)

history = [*log.history["loss"], *log.history["worst"]]
