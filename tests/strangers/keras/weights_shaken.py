"""Within an epoch a callback adds noise to a kernel, and forgets the momentum."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(102)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Shake(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.draw = np.random.default_rng(5)

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            kernel = self.model.layers[0].kernel
            kernel.assign_add(self.draw.normal(size=kernel.shape).astype("float32") * 0.05)
            for state in self.model.optimizer.variables:
                if "momentum" in state.path:
                    state.assign(ops.zeros_like(state))


model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
log = model.fit(x, y, batch_size=16, epochs=3, callbacks=[Shake()], verbose=0).history
history = log["loss"] + log["mae"]
