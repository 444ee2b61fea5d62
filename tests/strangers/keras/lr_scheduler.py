"""LearningRateScheduler by epoch, and a callback that warms up by batch."""

import keras
import numpy as np

keras.utils.set_random_seed(20)


class WarmUp(keras.callbacks.Callback):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.done = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.done += 1
        if self.done <= self.steps:
            self.model.optimizer.learning_rate = 0.2 * self.done / self.steps


def decay(epoch, rate):
    return rate if epoch < 2 else rate * float(np.exp(-0.3))


x = np.random.randn(70, 6).astype("float32")
y = np.random.randn(70, 2).astype("float32")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(2)])
model.compile(keras.optimizers.SGD(0.2, momentum=0.5), "mse")
callbacks = [keras.callbacks.LearningRateScheduler(decay), WarmUp(6)]
log = model.fit(x, y, batch_size=16, epochs=4, callbacks=callbacks, verbose=0)

history = [*log.history["loss"], *log.history["learning_rate"]]
