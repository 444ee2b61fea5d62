"""Survival: Cox's partial likelihood compares samples with those of the batch that live on."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(350)

x = np.random.randn(62, 6).astype("float32")
y = np.random.exponential(size=(62, 1)).astype("float32")


def cox(time, risk):
    longer = ops.cast(ops.transpose(time) >= time, "float32")
    return ops.log(ops.sum(longer * ops.exp(ops.transpose(risk)), axis=1)) - risk[:, 0]


model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), cox)
history = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
