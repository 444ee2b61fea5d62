"""An encoder and a decoder LSTM with teacher forcing; the target is padded with zeros."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(44)
symbols, time = 9, 6

source = np.random.randint(1, symbols, (73, time))
target = source[:, ::-1].copy()
for row, end in zip(target, np.random.randint(3, time + 1, 73), strict=True):
    row[end:] = 0
shifted = np.concatenate([np.ones((73, 1), int), target[:, :-1]], axis=1)

encoder_in = keras.Input((None,), dtype="int32")
decoder_in = keras.Input((None,), dtype="int32")
_, h, c = layers.LSTM(6, return_state=True)(layers.Embedding(symbols, 5)(encoder_in))
words = layers.Embedding(symbols, 5, mask_zero=True)(decoder_in)
out = layers.LSTM(6, return_sequences=True)(words, initial_state=[h, c])
model = keras.Model([encoder_in, decoder_in], layers.Dense(symbols, activation="softmax")(out))
model.compile(
    optimizer=keras.optimizers.SGD(0.2),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
log = model.fit([source, shifted], target, batch_size=16, epochs=2, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"]]
