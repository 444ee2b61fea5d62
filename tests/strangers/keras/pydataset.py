"""Batches by a PyDataset that shuffles its indices by NumPy at each epoch's end."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(24)


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, size):
        super().__init__()
        self.x, self.y, self.size = x, y, size
        self.order = np.arange(len(x))
        np.random.shuffle(self.order)

    def __len__(self):
        return -(-len(self.x) // self.size)

    def __getitem__(self, i):
        chosen = self.order[i * self.size : (i + 1) * self.size]
        return self.x[chosen], self.y[chosen]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


x = np.random.randn(67, 4).astype("float32")
y = (x @ np.random.randn(4, 2)).astype("float32")
model = keras.Sequential([keras.Input((4,)), layers.Dense(6, "relu"), layers.Dense(2)])
model.compile(keras.optimizers.SGD(0.05), "mse")
log = model.fit(Batches(x, y, 15), epochs=3, validation_data=Batches(x, y, 20), verbose=0)
score = model.evaluate(Batches(x, y, 9), verbose=0)

history = [*log.history["loss"], *log.history["val_loss"], score]
