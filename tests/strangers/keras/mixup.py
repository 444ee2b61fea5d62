"""mixup in the model: each sample is blended with another one of its batch."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(66)


class Mixup(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(8)

    def call(self, x, training=False):
        if not training:
            return x
        share = keras.random.beta((ops.shape(x)[0], 1), 2.0, 2.0, seed=self.seed)
        order = keras.random.shuffle(ops.arange(ops.shape(x)[0]), seed=self.seed)
        return share * x + (1 - share) * ops.take(x, order, axis=0)


x = np.random.randn(60, 5).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.Input((5,)), Mixup(), layers.Dense(7, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.02), "mse")
log = model.fit(x, y, batch_size=16, epochs=2, verbose=0)

history = log.history["loss"]
