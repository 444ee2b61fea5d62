"""Two models are trained in turns, each also on what the other predicts."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(122)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


def made(width):
    one = keras.Sequential(
        [keras.Input((6,)), layers.Dense(width, "relu"), layers.Dropout(0.2), layers.Dense(1)]
    )
    one.compile(keras.optimizers.Adam(0.01), "mse")
    return one


models = [made(7), made(11)]
history = []
for _ in range(3):
    for one, other in (models, models[::-1]):
        target = 0.7 * y + 0.3 * other.predict(x, batch_size=20, verbose=0)
        history += one.fit(x, target, batch_size=16, epochs=1, verbose=0).history["loss"]
