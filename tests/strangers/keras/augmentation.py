"""Image augmentation as layers of the model."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(59)

images = np.random.rand(49, 10, 10, 3).astype("float32")
labels = np.random.randint(0, 2, 49)
augment = keras.Sequential(
    [
        layers.RandomFlip("horizontal_and_vertical"),
        layers.RandomRotation(0.1),
        layers.RandomZoom(0.1),
        layers.RandomContrast(0.2, value_range=(0, 1)),
    ]
)
inputs = keras.Input((10, 10, 3))
h = augment(inputs)
h = layers.SeparableConv2D(5, 3, activation="relu")(h)
h = layers.SpatialDropout2D(0.2)(h)
model = keras.Model(inputs, layers.Dense(1, "sigmoid")(layers.GlobalMaxPooling2D()(h)))
model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
log = model.fit(images, labels, batch_size=14, epochs=2, verbose=0)
score = model.evaluate(images, labels, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"], *score]
