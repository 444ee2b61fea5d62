"""A small vision transformer: random flips, patches by a strided convolution, attention."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(404)


class Places(layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer="random_normal")

    def call(self, x):
        return x + self.table


images = np.random.rand(61, 12, 12, 3).astype("float32")
labels = np.random.randint(0, 4, (61, 1))
images[..., 0] += labels[:, :, None] * 0.3

inputs = keras.Input((12, 12, 3))
x = layers.RandomFlip("horizontal")(inputs)
x = layers.Conv2D(8, kernel_size=4, strides=4)(x)
x = layers.Reshape((9, 8))(x)
x = Places()(x)
for _ in range(2):
    y = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 4, dropout=0.1)(y, y)])
    y = layers.Dense(12, activation="gelu")(layers.LayerNormalization()(x))
    x = layers.Add()([x, layers.Dense(8)(layers.Dropout(0.1)(y))])
x = layers.Dropout(0.3)(layers.Flatten()(layers.LayerNormalization()(x)))
model = keras.Model(inputs, layers.Dense(4)(x))
model.compile(
    optimizer=keras.optimizers.SGD(0.02, momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")],
)
log = model.fit(images, labels, batch_size=16, epochs=2, validation_split=0.1, verbose=0)

history = [value for name in sorted(log.history) for value in log.history[name]]
