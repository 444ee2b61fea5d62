"""Raw sentences: TextVectorization is adapted in the script, then tf.data feeds fit."""

import random

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(83)

words = ["red", "green", "blue", "fast", "slow", "high", "low", "warm", "cold"]
texts = [" ".join(random.choices(words, k=random.randint(2, 6))) for _ in range(70)]
labels = np.array([("red" in text or "warm" in text) for text in texts]).astype("int32")

split = layers.TextVectorization(max_tokens=12, output_sequence_length=6)
split.adapt(texts)
data = tf.data.Dataset.from_tensor_slices((texts, labels))
data = data.shuffle(70, seed=1).batch(16).map(lambda text, label: (split(text), label))

model = keras.Sequential(
    [
        keras.Input((6,), dtype="int32"),
        layers.Embedding(12, 5),
        layers.Conv1D(6, 3, activation="relu", padding="same"),
        layers.GlobalMaxPooling1D(),
        layers.Dropout(0.5),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.SGD(0.3), "binary_crossentropy", metrics=["accuracy"])
log = model.fit(data, epochs=3, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"]]
