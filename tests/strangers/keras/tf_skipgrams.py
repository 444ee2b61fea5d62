"""word2vec with sampled negatives, from a cached and shuffled tf.data."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(341)

targets = np.random.randint(1, 30, 90)
contexts = np.random.randint(1, 30, (90, 4))
labels = np.tile([1, 0, 0, 0], (90, 1))


class Word2Vec(keras.Model):
    def __init__(self):
        super().__init__()
        self.target, self.context = layers.Embedding(30, 5), layers.Embedding(30, 5)

    def call(self, pair):
        t, c = pair
        return tf.einsum("be,bce->bc", self.target(t), self.context(c))


data = (
    tf.data.Dataset.from_tensor_slices(((targets, contexts), labels))
    .cache()
    .shuffle(90, seed=1)
    .batch(16, drop_remainder=True)
    .prefetch(1)
)
model = Word2Vec()
model.compile("adam", keras.losses.CategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
log = model.fit(data, epochs=3, verbose=0).history
history = [each for name in sorted(log) for each in log[name]]
