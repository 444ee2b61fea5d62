"""reduction="sum": the loss of a batch grows with it."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(65)

x = np.random.randn(66, 5).astype("float32")
y = np.random.randint(0, 4, 66)
model = keras.Sequential([keras.Input((5,)), layers.Dense(8, activation="relu"), layers.Dense(4)])
model.compile(
    optimizer=keras.optimizers.SGD(0.005),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
    metrics=["accuracy"],
)
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"]]
