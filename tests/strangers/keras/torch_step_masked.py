"""On torch, a train_step of one's own divides by how many tokens are no padding."""

import keras
import numpy as np
import torch
from keras import layers, ops

keras.utils.set_random_seed(302)
words, length = 12, 7


class Tagger(keras.Model):
    def train_step(self, data):
        x, y = data
        real = ops.cast(ops.not_equal(x, 0), "float32")
        self.zero_grad()
        logits = self(x, training=True)
        each = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        loss = ops.sum(each * real) / ops.sum(real)
        loss.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        return {"loss": loss.detach()}


lengths = np.random.randint(1, length + 1, 66)
x = np.random.randint(1, words, (66, length))
x[np.arange(length) >= lengths[:, None]] = 0
y = (x * 5 + 1) % words
tokens = keras.Input((length,), dtype="int32")
model = Tagger(tokens, layers.Dense(words)(layers.Embedding(words, 6)(tokens)))
model.compile(keras.optimizers.SGD(0.3))
log = model.fit(x, y, batch_size=16, epochs=2, verbose=0)

history = log.history["loss"]
