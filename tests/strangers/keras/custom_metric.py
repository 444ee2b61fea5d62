"""A metric of one's own, and one written as a function."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(31)


class HitRate(keras.metrics.Metric):
    def __init__(self, name="hits"):
        super().__init__(name=name)
        self.hits = self.add_weight(shape=(3,), initializer="zeros", name="hits")
        self.seen = self.add_weight(shape=(3,), initializer="zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        truth = ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), 3)
        guess = ops.one_hot(ops.argmax(y_pred, axis=-1), 3)
        self.hits.assign_add(ops.sum(truth * guess, axis=0))
        self.seen.assign_add(ops.sum(truth, axis=0))

    def result(self):
        return ops.mean(self.hits / ops.maximum(self.seen, 1.0))


def confidence(y_true, y_pred):
    return ops.max(ops.softmax(y_pred), axis=-1) + 0.0 * ops.cast(y_true, y_pred.dtype)


x = np.random.randn(97, 5).astype("float32")
y = np.argmax(x[:, :3], axis=1)
model = keras.Sequential([keras.Input((5,)), layers.Dense(7, activation="relu"), layers.Dense(3)])
model.compile(
    optimizer=keras.optimizers.SGD(0.1),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[HitRate(), confidence],
)
log = model.fit(x, y, batch_size=16, epochs=3, validation_data=(x[:31], y[:31]), verbose=0)

history = [value for name in sorted(log.history) for value in log.history[name]]
