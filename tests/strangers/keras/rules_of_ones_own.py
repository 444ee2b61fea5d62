"""An initializer, a constraint and regularizers of one's own; saved whole and loaded."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(317)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


@keras.saving.register_keras_serializable("own")
class Rows(keras.constraints.Constraint):
    def __call__(self, w):
        return (
            w
            / (keras.config.epsilon() + ops.sqrt(ops.sum(ops.square(w), axis=0, keepdims=True)))
            * 0.9
        )


@keras.saving.register_keras_serializable("own")
class Sparse(keras.regularizers.Regularizer):
    def __init__(self, strength=0.01):
        self.strength = strength

    def __call__(self, w):
        return self.strength * ops.sum(ops.sqrt(ops.sum(ops.square(w), axis=1) + 1e-6))

    def get_config(self):
        return {"strength": self.strength}


@keras.saving.register_keras_serializable("own")
class Start(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        return keras.random.uniform(shape, -0.3, 0.3, dtype=dtype, seed=7)


model = keras.Sequential(
    [
        keras.Input((6,)),
        layers.Dense(9, "tanh", kernel_initializer=Start(), kernel_constraint=Rows()),
        layers.Dense(
            6,
            "tanh",
            kernel_regularizer=keras.regularizers.OrthogonalRegularizer(0.05, mode="columns"),
        ),
        layers.Dense(1, kernel_regularizer=Sparse(), bias_constraint=keras.constraints.NonNeg()),
    ]
)
model.compile(keras.optimizers.SGD(0.1), "mse")
history = list(model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"])
model.save("own.keras")
model = keras.models.load_model("own.keras")
history += model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
