"""Tags for words: the mask of the padding reaches the loss."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(73)

sentences = np.random.randint(1, 20, (65, 7))
for row, end in zip(sentences, np.random.randint(1, 8, 65), strict=True):
    row[end:] = 0
tags = sentences % 4
model = keras.Sequential(
    [
        keras.Input((7,), dtype="int32"),
        layers.Embedding(20, 6, mask_zero=True),
        layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
        layers.TimeDistributed(layers.Dense(4, activation="softmax")),
    ]
)
model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
log = model.fit(sentences, tags, batch_size=16, epochs=3, verbose=0)
loss, accuracy = model.evaluate(sentences, tags, batch_size=12, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"], loss, accuracy]
