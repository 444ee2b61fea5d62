"""Segmentation where a class is ignored: SparseCategoricalCrossentropy(ignore_class=)."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(301)

x = np.random.randn(46, 5, 4).astype("float32")
y = np.random.randint(0, 3, (46, 5))
y[np.random.rand(46, 5) < 0.4] = -1
y[:3] = -1
model = keras.Sequential(
    [
        keras.Input((5, 4)),
        layers.Conv1D(8, 3, padding="same", activation="relu"),
        layers.Dense(3, "softmax"),
    ]
)
model.compile(
    keras.optimizers.SGD(0.2), keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
)
history = model.fit(x, y, batch_size=11, epochs=3, verbose=0).history["loss"]
history += [float(model.evaluate(x, y, batch_size=13, verbose=0))]
