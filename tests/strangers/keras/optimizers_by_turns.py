"""The same model by Nadam, Muon, Lion, Adafactor, Ftrl and Lamb, one after the other."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(134)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")
model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "tanh"), layers.Dense(1)])
history = []
for made in (
    keras.optimizers.Nadam(0.002),
    keras.optimizers.Muon(0.01, weight_decay=0.1),
    keras.optimizers.Lion(0.001),
    keras.optimizers.Adafactor(0.01),
    keras.optimizers.Ftrl(0.01),
    keras.optimizers.Lamb(0.002),
):
    model.compile(made, "mse")
    history += model.fit(x, y, batch_size=16, epochs=1, verbose=0).history["loss"]
