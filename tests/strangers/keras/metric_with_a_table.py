"""A metric of one's own that keeps a table of confusions, and gives Cohen's kappa."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(120)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Kappa(keras.metrics.Metric):
    def __init__(self, name="kappa"):
        super().__init__(name=name)
        self.table = self.add_weight(shape=(3, 3), initializer="zeros", name="table")

    def update_state(self, y_true, y_pred, sample_weight=None):
        true = ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), 3)
        found = ops.one_hot(ops.argmax(y_pred, axis=-1), 3)
        self.table.assign_add(ops.matmul(ops.transpose(true), found))

    def result(self):
        total = ops.sum(self.table) + 1e-9
        right = ops.sum(ops.diagonal(self.table)) / total
        chance = ops.sum(ops.sum(self.table, 0) * ops.sum(self.table, 1)) / total**2
        return (right - chance) / (1 - chance + 1e-9)


labels = np.digitize(x[:, 0], [-0.4, 0.4])
model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "relu"), layers.Dense(3)])
model.compile(
    keras.optimizers.SGD(0.1),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[Kappa(), keras.metrics.SparseTopKCategoricalAccuracy(2)],
)
log = model.fit(x, labels, batch_size=16, epochs=3, validation_split=0.25, verbose=0).history
history = [each for name in sorted(log) for each in log[name]]
