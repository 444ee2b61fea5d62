"""Segmentation with a dice loss over all pixels of the batch."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(63)

images = np.random.rand(43, 8, 8, 1).astype("float32")
masks = (images > 0.6).astype("float32")
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(4, 3, padding="same", activation="relu"),
        layers.Conv2D(1, 1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.SGD(0.5), loss=keras.losses.Dice())
log = model.fit(images, masks, batch_size=12, epochs=2, verbose=0)

history = log.history["loss"]
