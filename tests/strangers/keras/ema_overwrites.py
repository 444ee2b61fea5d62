"""The optimizer keeps means of the weights, and overwrites the weights by them."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(114)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "relu"), layers.BatchNormalization(), layers.Dense(1)]
)
model.compile(
    keras.optimizers.SGD(
        0.1, nesterov=True, momentum=0.8, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=3
    ),
    "mse",
)
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history["loss"]
model.optimizer.finalize_variable_values(model.trainable_variables)
history += [model.evaluate(x, y, verbose=0)]
