"""Plain NumPy float64 everywhere, a metric of one's own over it, verbose output on."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(81)


class R2(keras.metrics.Metric):
    def __init__(self, name="r2"):
        super().__init__(name=name)
        self.residual = self.add_weight(initializer="zeros", name="residual")
        self.total = self.add_weight(initializer="zeros", name="total")
        self.squares = self.add_weight(initializer="zeros", name="squares")
        self.count = self.add_weight(initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.cast(y_true, "float32")
        self.residual.assign_add(ops.sum(ops.square(y_true - y_pred)))
        self.total.assign_add(ops.sum(y_true))
        self.squares.assign_add(ops.sum(ops.square(y_true)))
        self.count.assign_add(ops.cast(ops.size(y_true), "float32"))

    def result(self):
        spread = self.squares - ops.square(self.total) / self.count
        return 1.0 - self.residual / spread


x, y = np.random.rand(73, 4), np.random.rand(73, 1) * 2
model = keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse", metrics=[R2(), "mean_absolute_percentage_error"])
log = model.fit(x, y, batch_size=16, epochs=3, verbose=2)

history = [value for name in sorted(log.history) for value in log.history[name]]
