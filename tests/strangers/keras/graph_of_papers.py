"""A citation graph held by the model: batches are node numbers, layers run over the whole graph."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(305)

n = 40
features = np.random.randn(n, 5).astype("float32")
edges = np.random.randint(0, n, (2, 120))
labels = np.random.randint(0, 3, n)


class Convolve(layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.ffn = keras.Sequential(
            [layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(units, "gelu")]
        )

    def call(self, nodes, training=False):
        messages = ops.take(self.ffn(nodes, training=training), edges[0], axis=0)
        return ops.segment_sum(messages, edges[1], num_segments=n) / 3.0


class Graph(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = Convolve(8), Convolve(8), layers.Dense(3)

    def call(self, rows, training=False):
        nodes = self.first(ops.convert_to_tensor(features), training=training)
        nodes = nodes + self.second(nodes, training=training)
        return self.head(ops.take(nodes, rows, axis=0))


model = Graph()
model.compile(
    keras.optimizers.SGD(0.1),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
log = model.fit(
    np.arange(31),
    labels[:31],
    batch_size=8,
    epochs=3,
    validation_data=(np.arange(31, 40), labels[31:]),
    verbose=0,
).history
history = [each for name in sorted(log) for each in log[name]]
