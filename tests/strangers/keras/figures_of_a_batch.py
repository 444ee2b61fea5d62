"""compute_metrics adds figures of the batch: its root error, its largest, its spread."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(207)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Model(keras.Model):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        error = ops.square(y - y_pred)
        found["rmse"] = ops.sqrt(ops.mean(error))
        found["worst"] = ops.max(error)
        found["spread"] = ops.std(y_pred)
        return found


seen = keras.Input((6,))
model = Model(seen, layers.Dense(1)(layers.Dense(9, "relu")(seen)))
model.compile(keras.optimizers.SGD(0.1), "mse")
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history
history = [each for name in sorted(log) for each in log[name]]
history += [
    float(v)
    for k, v in sorted(model.evaluate(x, y, batch_size=62, return_dict=True, verbose=0).items())
]
