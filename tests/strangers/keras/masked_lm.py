"""BERT's pretraining: a weight per token says which tokens count."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(7)
length, vocabulary, mask_token = 8, 21, 20

tokens = np.random.randint(0, mask_token, (69, length))
chosen = np.random.rand(69, length) < 0.2
chosen[::9] = False
x = np.where(chosen, mask_token, tokens)
weights = chosen.astype("float32")


class Bert(keras.Model):
    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(vocabulary, 8)
        self.places = layers.Embedding(length, 8)
        self.attention = layers.MultiHeadAttention(2, 4)
        self.norm = layers.LayerNormalization()
        self.head = layers.Dense(vocabulary, activation="softmax")

    def call(self, tokens):
        h = self.words(tokens) + self.places(ops.arange(length))
        return self.head(self.norm(h + self.attention(h, h)))


model = Bert()
model.compile(
    optimizer=keras.optimizers.SGD(0.2),
    loss=keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight"),
    weighted_metrics=["accuracy"],
)
log = model.fit(x, tokens, sample_weight=weights, batch_size=16, epochs=2, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"]]
