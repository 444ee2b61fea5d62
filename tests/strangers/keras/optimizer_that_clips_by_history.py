"""An optimizer of one's own: it clips by the mean norm so far, and centres gradients."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(203)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class AutoClip(keras.optimizers.SGD):
    def build(self, variables):
        super().build(variables)
        self.mean_norm = self.add_variable((), name="mean_norm", initializer="ones")

    def apply(self, grads, trainable_variables=None):
        norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in grads))
        self.mean_norm.assign(0.9 * self.mean_norm + 0.1 * norm) if self.built else None
        most = self.mean_norm if self.built else 1.0
        grads = [g * ops.minimum(1.0, 0.7 * most / norm) for g in grads]
        return super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        if len(variable.shape) > 1:
            gradient = gradient - ops.mean(gradient, axis=0, keepdims=True)
        super().update_step(gradient, variable, learning_rate)


model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "relu"), layers.Dense(1)])
model.compile(AutoClip(0.1, momentum=0.8), "mse")
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history["loss"]
