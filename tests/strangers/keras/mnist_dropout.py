"""A small convnet for digits, with Dropout and a validation split."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(812)

classes = 5
images = np.random.rand(131, 12, 12, 1).astype("float32")
labels = np.random.randint(0, classes, 131)
images[np.arange(131), labels * 2] += 0.7
targets = keras.utils.to_categorical(labels, classes)

model = keras.Sequential(
    [
        keras.Input(shape=(12, 12, 1)),
        layers.Conv2D(6, kernel_size=3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(8, kernel_size=3, activation="relu"),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(classes, activation="softmax"),
    ]
)
model.compile(
    loss="categorical_crossentropy",
    optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
    metrics=["accuracy"],
)
log = model.fit(images, targets, batch_size=16, epochs=2, validation_split=0.1, verbose=0)
score = model.evaluate(images, targets, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"], *log.history["val_loss"], *score]
