"""Residual blocks that are left out at random, sample by sample, and a learnt mix of patches."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(323)


class StochasticDepth(layers.Layer):
    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, x, training=False):
        if not training:
            return x
        keep = 1 - self.rate
        shape = (ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
        drawn = keep + keras.random.uniform(shape, 0, 1, seed=self.seed_generator)
        return x / keep * ops.floor(drawn)


pictures = np.random.rand(70, 8, 8, 1).astype("float32")
kinds = (pictures.mean((1, 2, 3)) * 20).astype("int32") % 3
seen = keras.Input((8, 8, 1))
h = layers.Conv2D(6, 2, strides=2)(seen)
h = layers.Reshape((16, 6))(h)
for rate in (0.1, 0.4):
    inner = layers.LayerNormalization(epsilon=1e-6)(h)
    inner = layers.Dense(12, keras.activations.gelu)(inner)
    inner = layers.Dropout(0.2)(layers.Dense(6)(inner))
    h = layers.Add()([h, StochasticDepth(rate)(inner)])
pooling = ops.softmax(layers.Dense(1)(h), axis=1)
pooled = layers.Flatten()(ops.matmul(ops.transpose(pooling, (0, 2, 1)), h))
model = keras.Model(seen, layers.Dense(3)(pooled))
model.compile(
    keras.optimizers.SGD(0.1, momentum=0.9),
    keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    metrics=[keras.metrics.TopKCategoricalAccuracy(2, name="top2")],
)
labels = keras.utils.to_categorical(kinds, 3)
log = model.fit(pictures, labels, batch_size=16, epochs=2, validation_split=0.1, verbose=0)

history = [value for name in sorted(log.history) for value in log.history[name]]
