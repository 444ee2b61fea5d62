"""A subclassed model that is built by the first batch of fit."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(57)


class Net(keras.Model):
    def __init__(self, width, classes):
        super().__init__()
        self.first = layers.Dense(width)
        self.second = layers.Dense(width)
        self.drop = layers.Dropout(0.3)
        self.out = layers.Dense(classes)

    def call(self, x, training=False):
        h = ops.relu(self.first(x))
        if training:
            h = self.drop(h, training=training)
        return self.out(ops.relu(self.second(h)))


x = np.random.randn(88, 5).astype("float32")
y = keras.utils.to_categorical(np.random.randint(0, 3, 88), 3)
model = Net(8, 3)
model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1))
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0)

history = log.history["loss"]
