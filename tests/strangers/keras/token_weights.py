"""Weights per token under the default reduction: a mean over all tokens, weighed."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(71)

x = np.random.randint(0, 15, (59, 6))
y = (x * 2 + 1) % 15
weights = np.random.rand(59, 6).astype("float32") * (np.random.rand(59, 6) < 0.4)

model = keras.Sequential(
    [
        keras.Input((6,), dtype="int32"),
        layers.Embedding(15, 7),
        layers.GRU(7, return_sequences=True),
        layers.Dense(15),
    ]
)
model.compile(
    optimizer=keras.optimizers.SGD(0.3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["sparse_categorical_accuracy"],
    weighted_metrics=["sparse_categorical_crossentropy"],
)
log = model.fit(x, y, sample_weight=weights, batch_size=14, epochs=2, verbose=0)

history = [value for name in sorted(log.history) for value in log.history[name]]
