"""The learning rate grows with each batch until the loss does; then training stops."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(309)


class Finder(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.rates, self.losses = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.01 * 1.4 ** len(self.losses)

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))
        self.losses.append(logs["loss"])
        if logs["loss"] > 1.3 * min(self.losses):
            self.model.stop_training = True


x = np.random.randn(90, 5).astype("float32")
y = np.random.randn(90, 1).astype("float32")
model = keras.Sequential([keras.Input((5,)), layers.Dense(6, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
finder = Finder()
model.fit(x, y, batch_size=16, epochs=6, callbacks=[finder], verbose=0)

history = [*finder.rates, *finder.losses]
