"""A switch of experts: a token goes to one, and a loss over the batch keeps them balanced."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(311)

x = np.random.randn(50, 5, 6).astype("float32")
y = np.random.randint(0, 3, 50)


class Switch(layers.Layer):
    def __init__(self, experts=3, units=6):
        super().__init__()
        self.router = layers.Dense(experts)
        self.experts = [layers.Dense(units, "relu") for _ in range(experts)]

    def call(self, x):
        p = ops.softmax(self.router(x))
        pick = ops.one_hot(ops.argmax(p, axis=-1), len(self.experts))
        share, mass = ops.mean(pick, axis=(0, 1)), ops.mean(p, axis=(0, 1))
        self.add_loss(0.1 * len(self.experts) * ops.sum(share * mass))
        out = ops.stack([e(x) for e in self.experts], axis=-2)
        return ops.sum(out * ops.expand_dims(p * pick, -1), axis=-2)


seen = keras.Input((5, 6))
h = layers.GlobalAveragePooling1D()(Switch()(seen))
model = keras.Model(seen, layers.Dense(3, "softmax")(h))
model.compile(keras.optimizers.SGD(0.2), "sparse_categorical_crossentropy")
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history["loss"]
