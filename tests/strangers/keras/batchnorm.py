"""A residual convnet with BatchNorm."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(37)

x = np.random.rand(58, 8, 8, 3).astype("float32")
y = np.random.randint(0, 3, 58)


def unit(h, channels):
    out = layers.BatchNormalization()(layers.Conv2D(channels, 3, padding="same")(h))
    out = layers.Activation("relu")(out)
    out = layers.BatchNormalization()(layers.Conv2D(channels, 3, padding="same")(out))
    return layers.Activation("relu")(layers.Add()([h, out]))


image = keras.Input((8, 8, 3))
h = unit(layers.Conv2D(4, 1)(image), 4)
h = unit(layers.MaxPooling2D()(h), 4)
model = keras.Model(image, layers.Dense(3)(layers.GlobalAveragePooling2D()(h)))
model.compile(
    keras.optimizers.SGD(0.05, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
log = model.fit(x, y, batch_size=16, epochs=2, validation_data=(x[:20], y[:20]), verbose=0)

history = [value for name in sorted(log.history) for value in log.history[name]]
