"""Quantiles, a mixture density and a partial likelihood: losses of one's own."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(349)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


def pinball(y_true, y_pred):
    q = ops.convert_to_tensor([0.1, 0.5, 0.9])
    e = y_true - y_pred
    return ops.mean(ops.maximum(q * e, (q - 1) * e), axis=-1)


class Mixture(keras.losses.Loss):
    def call(self, y_true, y_pred):
        pi, mu, s = ops.split(y_pred, 3, axis=-1)
        log = -0.5 * ops.square((y_true - mu) / ops.exp(s)) - s
        return -ops.logsumexp(ops.log_softmax(pi) + log, axis=-1)


seen = keras.Input((6,))
h = layers.Dense(9, "tanh")(seen)
model = keras.Model(seen, {"q": layers.Dense(3, name="q")(h), "m": layers.Dense(6, name="m")(h)})
model.compile(
    keras.optimizers.SGD(0.05), {"q": pinball, "m": Mixture()}, loss_weights={"q": 2.0, "m": 0.5}
)
log = model.fit(x, {"q": y, "m": y}, batch_size=16, epochs=3, verbose=0).history
history = [each for name in sorted(log) for each in log[name]]
