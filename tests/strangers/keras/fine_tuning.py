"""Transfer: train on frozen layers, then let them learn too with a smaller rate."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(36)

images = np.random.rand(65, 8, 8, 2).astype("float32")
old, new = np.random.randint(0, 5, 65), np.random.randint(0, 2, (65, 1))

base = keras.Sequential(
    [
        keras.Input((8, 8, 2)),
        layers.Conv2D(4, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.GlobalAveragePooling2D(),
    ],
    name="base",
)
pretraining = keras.Sequential([base, layers.Dense(5)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
pretraining.compile(keras.optimizers.SGD(0.1), loss)
log = pretraining.fit(images, old, batch_size=16, epochs=2, verbose=0)
history = log.history["loss"]

base.trainable = False
inputs = keras.Input((8, 8, 2))
features = base(inputs, training=False)
model = keras.Model(inputs, layers.Dense(1)(layers.Dropout(0.2)(features)))
binary = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1), binary, metrics=[keras.metrics.BinaryAccuracy()])
history += model.fit(images, new, batch_size=16, epochs=2, verbose=0).history["loss"]

base.trainable = True
model.compile(keras.optimizers.SGD(0.01), binary, metrics=[keras.metrics.BinaryAccuracy()])
log = model.fit(images, new, batch_size=16, epochs=2, verbose=0)
history += [*log.history["loss"], *log.history["binary_accuracy"]]
models = [model, pretraining]
