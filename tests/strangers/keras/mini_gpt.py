"""A tiny causal language model: the loss is the mean over all tokens of the batch."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(1337)
context, vocabulary, width = 7, 19, 8

text = np.random.randint(0, vocabulary, 79 * (context + 1)).reshape(79, context + 1)
text[:, 1::2] = (text[:, ::2] + 1) % vocabulary
x, y = text[:, :-1], text[:, 1:]


class Decoder(layers.Layer):
    def __init__(self):
        super().__init__()
        self.embed = layers.Embedding(vocabulary, width)
        self.position = layers.Embedding(context, width)
        self.attend = layers.MultiHeadAttention(2, 4)
        self.norm = layers.LayerNormalization()
        self.grow = layers.Dense(2 * width, activation="gelu")
        self.shrink = layers.Dense(width)
        self.drop = layers.Dropout(0.1)

    def call(self, tokens):
        h = self.embed(tokens) + self.position(ops.arange(context))
        h = h + self.drop(self.attend(h, h, use_causal_mask=True))
        h = self.norm(h)
        return h + self.shrink(self.grow(h))


tokens = keras.Input((context,), dtype="int32")
model = keras.Model(tokens, layers.Dense(vocabulary)(Decoder()(tokens)))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss)


class Sampler(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        start = np.zeros((1, context), "int32")
        for i in range(context - 1):
            scores = self.model.predict(start, verbose=0)[0, i]
            odds = np.exp(scores - scores.max())
            start[0, i + 1] = np.random.choice(vocabulary, p=odds / odds.sum())
        written.append(start[0].tolist())


written = []
log = model.fit(x, y, batch_size=16, epochs=2, callbacks=[Sampler()], verbose=0)
history = [*log.history["loss"], *np.ravel(written).tolist()]
