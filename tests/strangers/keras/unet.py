"""A small U-net: an answer per pixel, a weight per pixel."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(79)

images = np.random.rand(37, 8, 8, 2).astype("float32")
masks = (images[..., :1] > 0.6).astype("float32")
weights = np.where(masks[..., 0] == 1, 1.5, 0.5).astype("float32")

inputs = keras.Input((8, 8, 2))
wide = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
deep = layers.Conv2D(6, 3, padding="same", activation="relu")(layers.MaxPooling2D()(wide))
up = layers.Conv2D(4, 1)(layers.UpSampling2D()(deep))
joined = layers.Concatenate()([wide, up])
model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(joined))
model.compile(
    keras.optimizers.SGD(0.3),
    "binary_crossentropy",
    weighted_metrics=[keras.metrics.BinaryIoU([0, 1])],
)
log = model.fit(images, masks, sample_weight=weights, batch_size=10, epochs=2, verbose=0)

history = log.history["loss"] + log.history["binary_io_u"]
