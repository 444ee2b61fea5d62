"""Pairs of images through one shared tower, and a contrastive loss per pair."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(17)


def distance(vectors):
    left, right = vectors
    gap = ops.sum(ops.square(left - right), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(gap, 1e-7))


def contrastive(y_true, y_pred):
    margin = ops.square(ops.maximum(1.0 - y_pred, 0))
    return ops.mean((1 - y_true) * ops.square(y_pred) + y_true * margin, axis=-1)


digits = np.random.rand(83, 10, 10, 1).astype("float32")
kinds = np.random.randint(0, 3, 83)
digits += 0.3 * kinds[:, None, None, None]
partners = np.random.permutation(83)
different = (kinds != kinds[partners]).astype("float32")[:, None]

picture = keras.Input((10, 10, 1))
h = layers.Conv2D(4, 3, activation="tanh")(picture)
h = layers.AveragePooling2D(2)(h)
h = layers.Dense(5, activation="tanh")(layers.Flatten()(h))
tower = keras.Model(picture, h)

first, second = keras.Input((10, 10, 1)), keras.Input((10, 10, 1))
apart = layers.Lambda(distance, output_shape=(1,))([tower(first), tower(second)])
model = keras.Model([first, second], layers.Dense(1, activation="sigmoid")(apart))
model.compile(loss=contrastive, optimizer=keras.optimizers.SGD(0.1), metrics=["accuracy"])
log = model.fit([digits, digits[partners]], different, batch_size=18, epochs=2, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"]]
