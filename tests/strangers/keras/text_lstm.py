"""Sentiment of word sequences of any length: masked Embedding, then an LSTM."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(60)

sentences = [np.random.randint(1, 40, np.random.randint(2, 11)).tolist() for _ in range(77)]
positive = np.array([float(np.mean(words) > 20) for words in sentences])
padded = keras.utils.pad_sequences(sentences, maxlen=9, padding="post")

model = keras.Sequential(
    [
        keras.Input((None,), dtype="int32"),
        layers.Embedding(40, 6, mask_zero=True),
        layers.LSTM(5, dropout=0.2),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
log = model.fit(padded, positive, batch_size=16, epochs=2, verbose=0)
loss, accuracy = model.evaluate(padded, positive, batch_size=10, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"], loss, accuracy]
