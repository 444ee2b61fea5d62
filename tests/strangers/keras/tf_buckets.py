"""Sentences of any length: batches by length, padded; a mask, class weights, ragged slices."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(338)

words = [np.random.randint(1, 20, np.random.randint(1, 9)) for _ in range(57)]
labels = np.random.randint(0, 2, 57)
data = tf.data.Dataset.from_generator(
    lambda: zip(words, labels),
    output_signature=(tf.TensorSpec((None,), tf.int64), tf.TensorSpec((), tf.int64)),
)
data = data.shuffle(57, seed=4).bucket_by_sequence_length(
    lambda w, _: tf.shape(w)[0], [4, 7], [9, 8, 6]
)
model = keras.Sequential(
    [
        keras.Input((None,), dtype="int32"),
        layers.Embedding(20, 6, mask_zero=True),
        layers.Bidirectional(layers.GRU(4)),
        layers.Dense(1, "sigmoid"),
    ]
)
model.compile(keras.optimizers.SGD(0.3), "binary_crossentropy", metrics=["accuracy"])
log = model.fit(data, epochs=3, class_weight={0: 0.5, 1: 2.0}, verbose=0).history
history = [each for name in sorted(log) for each in log[name]]
ragged = tf.ragged.constant([w.tolist() for w in words])
again = (
    tf.data.Dataset.from_tensor_slices((ragged, labels))
    .batch(13)
    .map(lambda w, label: (w.to_tensor(shape=(None, 9)), label))
)
log = model.fit(
    again.repeat(),
    epochs=2,
    steps_per_epoch=3,
    validation_data=again,
    validation_steps=2,
    verbose=0,
).history
history += [each for name in sorted(log) for each in log[name]]
