"""A callback sets the learning rate by the loss of the last batch."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(101)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Careful(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (1.0 + logs["loss"])


model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "tanh"), layers.Dropout(0.2), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
history = model.fit(x, y, batch_size=16, epochs=3, callbacks=[Careful()], verbose=0).history["loss"]
