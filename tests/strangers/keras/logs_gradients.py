"""Callbacks that log norms of weights and predictions, and count batches of every kind."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(344)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

seen = []


class Log(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["norm"] = float(sum(np.sum(np.square(w)) for w in self.model.get_weights()))
        logs["guess"] = float(np.asarray(self.model.predict(x[:5], verbose=0)).sum())
        logs["lr"] = float(self.model.optimizer.learning_rate)

    def on_train_batch_begin(self, batch, logs=None):
        seen.append(float(batch))

    def on_train_batch_end(self, batch, logs=None):
        seen.append(float(logs["loss"]))

    def on_test_batch_end(self, batch, logs=None):
        seen.append(float(batch))


model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "tanh"), layers.Dense(1)])
model.compile(
    keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.9)),
    "mse",
    metrics=["mae"],
)
log = model.fit(
    x,
    y,
    batch_size=16,
    epochs=3,
    validation_data=(x[:20], y[:20]),
    validation_batch_size=6,
    callbacks=[
        Log(),
        keras.callbacks.LambdaCallback(on_epoch_begin=lambda e, logs: seen.append(-1.0)),
    ],
    verbose=0,
).history
history = [each for name in sorted(log) for each in log[name]] + seen
