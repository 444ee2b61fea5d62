"""The optimizer accumulates three batches, across the ends of epochs and fits."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(113)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "relu", kernel_regularizer="l2"), layers.Dense(1)]
)
model.compile(
    keras.optimizers.AdamW(0.01, weight_decay=0.02, gradient_accumulation_steps=3, clipnorm=0.5),
    "mse",
)
history = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
history += model.fit(x[:40], y[:40], batch_size=12, epochs=2, verbose=0).history["loss"]
