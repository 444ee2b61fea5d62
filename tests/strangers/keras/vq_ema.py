"""A codebook that follows its vectors: counts and sums decay by each batch."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(305)


class Codebook(layers.Layer):
    def __init__(self, codes, decay=0.9):
        super().__init__()
        self.codes, self.decay = codes, decay

    def build(self, shape):
        size = shape[-1]
        start = keras.initializers.RandomUniform(seed=3)
        self.book = self.add_weight(
            shape=(self.codes, size), initializer=start, trainable=False, name="book"
        )
        self.counts = self.add_weight(
            shape=(self.codes,), initializer="ones", trainable=False, name="counts"
        )

    def call(self, x, training=False):
        far = ops.sum(ops.square(x[:, None] - self.book[None]), axis=-1)
        chosen = ops.one_hot(ops.argmin(far, axis=-1), self.codes)
        if training:
            counts = ops.sum(chosen, axis=0)
            sums = ops.matmul(ops.transpose(chosen), x)
            kept = self.decay * self.counts + (1 - self.decay) * counts
            moved = (
                self.book * ops.expand_dims(self.decay * self.counts, 1) + (1 - self.decay) * sums
            )
            self.book.assign(moved / ops.expand_dims(kept, 1))
            self.counts.assign(kept)
        nearest = ops.matmul(chosen, self.book)
        self.add_loss(0.25 * ops.mean(ops.square(ops.stop_gradient(nearest) - x)))
        return x + ops.stop_gradient(nearest - x)


x = np.random.randn(70, 8).astype("float32")
model = keras.Sequential(
    [keras.Input((8,)), layers.Dense(3), Codebook(5), layers.Dense(8, "tanh"), layers.Dense(8)]
)
model.compile(keras.optimizers.SGD(0.05), "mse")
log = model.fit(x, x, batch_size=16, epochs=2, verbose=0)

history = log.history["loss"]
