"""Domain adaptation: a gradient that is reversed, two heads, unlabelled rows by zero weights."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(324)

x = np.random.randn(62, 6).astype("float32")
domain = (np.arange(62) % 2).astype("float32")
x[domain == 1] += 0.7
y = (x[:, :1] > 0).astype("float32")


class Reverse(layers.Layer):
    def call(self, x):
        return -x + ops.stop_gradient(2 * x)


seen = keras.Input((6,))
h = layers.Dense(9, "relu")(seen)
model = keras.Model(
    seen,
    [
        layers.Dense(1, "sigmoid", name="label")(h),
        layers.Dense(1, "sigmoid", name="domain")(layers.Dense(5, "relu")(Reverse()(h))),
    ],
)
model.compile(
    keras.optimizers.SGD(0.2),
    ["binary_crossentropy", "binary_crossentropy"],
    loss_weights=[1.0, 0.4],
    metrics=[["accuracy"], ["accuracy"]],
)
log = model.fit(
    x,
    [y, domain[:, None]],
    sample_weight=[1 - domain, np.ones(62, "float32")],
    batch_size=16,
    epochs=3,
    verbose=0,
).history
history = [each for name in sorted(log) for each in log[name]]
