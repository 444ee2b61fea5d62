"""A step that runs eagerly, so that it can look at numbers and print them."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(383)
seen = []


class Looking(keras.Model):
    def train_step(self, *args):
        logs = super().train_step(*args)
        seen.append(float(logs["loss"]))
        return logs


x = np.random.randn(75, 6).astype("float32")
y = x @ np.random.randn(6, 2).astype("float32")
inputs = keras.Input((6,))
hidden = layers.Dropout(0.2)(layers.Dense(8, "relu")(inputs))
model = Looking(inputs, layers.Dense(2)(hidden))
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", run_eagerly=True)
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0)

history = log.history["loss"]
