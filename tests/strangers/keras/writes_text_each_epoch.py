"""A small language model; a callback draws a text from it after every epoch."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(324)
words, length = 11, 6


class Writer(keras.callbacks.Callback):
    texts: list = []

    def on_epoch_end(self, epoch, logs=None):
        text = [1, 2]
        while len(text) < length:
            tokens = np.array([text + [0] * (length - len(text))])
            logits = self.model.predict(tokens, verbose=0)[0][len(text) - 1]
            best = np.argsort(logits)[-4:]
            chances = np.asarray(ops.softmax(logits[best])).astype("float64")
            text.append(int(np.random.choice(best, p=chances / chances.sum())))
        self.texts.extend(text)


tokens = np.random.randint(1, words, (66, length + 1))
seen = keras.Input((length,), dtype="int32")
h = layers.Embedding(words, 8)(seen)
h = layers.GRU(8, return_sequences=True, dropout=0.1)(h)
model = keras.Model(seen, layers.Dense(words)(h))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.5), loss=loss)
log = model.fit(
    tokens[:, :-1], tokens[:, 1:], batch_size=16, epochs=3, callbacks=[Writer()], verbose=0
)

history = [*log.history["loss"], *Writer.texts]
