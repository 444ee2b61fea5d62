"""Ratings from embeddings of users and films: a subclassed model, SGD on sparse rows."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(78)
users, films = 14, 23

pairs = np.stack([np.random.randint(0, users, 117), np.random.randint(0, films, 117)], axis=1)
ratings = (np.random.rand(117) * 0.2 + (pairs[:, 0] % 2) * 0.7).astype("float32")


class Recommender(keras.Model):
    def __init__(self, size):
        super().__init__()
        penalty = keras.regularizers.l2(1e-4)
        self.user = layers.Embedding(users, size, embeddings_regularizer=penalty)
        self.film = layers.Embedding(films, size, embeddings_regularizer=penalty)
        self.user_bias = layers.Embedding(users, 1)
        self.film_bias = layers.Embedding(films, 1)

    def call(self, pair):
        match = ops.sum(self.user(pair[:, 0]) * self.film(pair[:, 1]), axis=1, keepdims=True)
        return ops.sigmoid(match + self.user_bias(pair[:, 0]) + self.film_bias(pair[:, 1]))


model = Recommender(5)
model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.SGD(1.0))
cut = int(0.9 * len(pairs))
log = model.fit(
    pairs[:cut], ratings[:cut], batch_size=20, epochs=3,
    validation_data=(pairs[cut:], ratings[cut:]), verbose=0,
)  # fmt: skip

history = [*log.history["loss"], *log.history["val_loss"]]
