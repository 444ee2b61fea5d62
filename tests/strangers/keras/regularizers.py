"""Penalties on kernels and on activations, and a constraint."""

import keras
import numpy as np
from keras import layers, regularizers

keras.utils.set_random_seed(21)

x = np.random.randn(87, 8).astype("float32")
y = np.random.randint(0, 3, 87)

model = keras.Sequential(
    [
        keras.Input((8,)),
        layers.Dense(
            10,
            activation="relu",
            kernel_regularizer=regularizers.L1L2(l1=1e-3, l2=1e-2),
            bias_regularizer=regularizers.L2(1e-2),
        ),
        layers.Dense(6, activation="tanh", activity_regularizer=regularizers.L2(1e-2)),
        layers.Dense(3, kernel_constraint=keras.constraints.MaxNorm(1.0)),
    ]
)
model.compile(
    keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
log = model.fit(x, y, batch_size=20, epochs=3, verbose=0)

history = [*log.history["loss"], model.evaluate(x, y, verbose=0)]
