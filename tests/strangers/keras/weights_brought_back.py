"""Weights and the optimizer's state are brought back in the midst of training."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(123)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class BringBack(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.save_weights("kept.weights.h5")
        if batch == 3:
            self.model.load_weights("kept.weights.h5")
            self.model.optimizer.learning_rate = self.model.optimizer.learning_rate * 0.5


model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.02), "mse")
history = model.fit(x, y, batch_size=16, epochs=2, callbacks=[BringBack()], verbose=0).history[
    "loss"
]
model.save("whole.keras")
best = model.get_weights()
history += model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
model.set_weights(best)
again = keras.models.load_model("whole.keras")
history += again.fit(x, y, batch_size=16, epochs=1, verbose=0).history["loss"]
models = [model, again]
