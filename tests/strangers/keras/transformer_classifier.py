"""A block of attention over token and position embeddings, pooled and classified."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(101)
length, vocabulary, width = 8, 30, 8


class Tokens(layers.Layer):
    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(vocabulary, width)
        self.places = layers.Embedding(length, width)

    def call(self, tokens):
        return self.words(tokens) + self.places(ops.arange(ops.shape(tokens)[-1]))


class Block(layers.Layer):
    def __init__(self, rate=0.1):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, width // 2, dropout=rate)
        self.mlp = keras.Sequential([layers.Dense(12, activation="relu"), layers.Dense(width)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.drops = [layers.Dropout(rate) for _ in range(2)]

    def call(self, x):
        x = self.norms[0](x + self.drops[0](self.attention(x, x)))
        return self.norms[1](x + self.drops[1](self.mlp(x)))


tokens = np.random.randint(0, vocabulary, (85, length))
label = (tokens[:, :4].sum(1) > tokens[:, 4:].sum(1)).astype("int32")

inputs = keras.Input((length,), dtype="int32")
h = layers.GlobalAveragePooling1D()(Block()(Tokens()(inputs)))
h = layers.Dense(6, activation="relu")(layers.Dropout(0.1)(h))
model = keras.Model(inputs, layers.Dense(2, activation="softmax")(layers.Dropout(0.1)(h)))
model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
log = model.fit(
    tokens[:70], label[:70], batch_size=16, epochs=2, validation_data=(tokens[70:], label[70:]),
    verbose=0,
)  # fmt: skip

history = [value for name in sorted(log.history) for value in log.history[name]]
