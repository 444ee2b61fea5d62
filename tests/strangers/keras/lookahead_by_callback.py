"""Every third batch the weights go half way back to slow ones."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(103)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Lookahead(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.slow, self.count = self.model.get_weights(), 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count % 3 == 0:
            fast = self.model.get_weights()
            self.slow = [s + 0.5 * (f - s) for s, f in zip(self.slow, fast)]
            self.model.set_weights(self.slow)


model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "relu"), layers.BatchNormalization(), layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(0.01), "huber")
history = model.fit(x, y, batch_size=14, epochs=3, callbacks=[Lookahead()], verbose=0).history[
    "loss"
]
