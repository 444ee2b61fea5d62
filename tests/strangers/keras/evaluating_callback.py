"""Callbacks that evaluate, predict and log within an epoch."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(23)

x = np.random.randn(74, 5).astype("float32")
y = np.random.randint(0, 3, 74)
history = []


class Watch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        history.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        history.append(self.model.evaluate(x[60:], y[60:], batch_size=5, verbose=0))
        guesses = self.model.predict(x, batch_size=32, verbose=0).argmax(axis=1)
        history.append(float((guesses == y).mean()))
        history.append(float(logs["val_loss"]))


model = keras.Sequential(
    [keras.Input((5,)), layers.Dense(8, "relu"), layers.Dropout(0.2), layers.Dense(3, "softmax")]
)
model.compile(keras.optimizers.SGD(0.2), "sparse_categorical_crossentropy")
model.fit(
    x[:60], y[:60], batch_size=16, epochs=3, validation_data=(x[60:], y[60:]),
    callbacks=[Watch()], verbose=0,
)  # fmt: skip
