"""The mean of the weights after the last epochs is what is kept."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(104)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Average(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= 1:
            self.seen.append(self.model.get_weights())

    def on_train_end(self, logs=None):
        self.model.set_weights([np.mean(each, axis=0) for each in zip(*self.seen)])


model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "relu"), layers.Dropout(0.3), layers.Dense(1)]
)
model.compile(keras.optimizers.RMSprop(0.005), "mse")
log = model.fit(
    x, y, batch_size=16, epochs=4, validation_split=0.2, callbacks=[Average()], verbose=0
).history
history = log["loss"] + log["val_loss"] + [model.evaluate(x, y, verbose=0)]
