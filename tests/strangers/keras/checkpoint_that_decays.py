"""A ModelCheckpoint of one's own also lowers the learning rate, and a CSVLogger counts epochs."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(362)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Decaying(keras.callbacks.ModelCheckpoint):
    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.5


model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.2), "mse")
history = model.fit(
    x,
    y,
    batch_size=16,
    epochs=4,
    callbacks=[Decaying("w{epoch}.weights.h5", save_weights_only=True)],
    verbose=0,
).history["loss"]
model.load_weights("w2.weights.h5")
history += model.fit(x, y, batch_size=16, epochs=1, verbose=0).history["loss"]
