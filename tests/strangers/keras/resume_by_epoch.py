"""A training that is interrupted by an error and resumed by BackupAndRestore, with Adam."""

import tempfile

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(76)

x = np.random.randn(61, 4).astype("float32")
y = np.random.randn(61, 1).astype("float32")
model = keras.Sequential([keras.Input((4,)), layers.Dense(6, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.02), "mse")


class PowerCut(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise RuntimeError("the power is gone")


backup = keras.callbacks.BackupAndRestore(tempfile.mkdtemp())
history = []
try:
    model.fit(x, y, batch_size=16, epochs=4, callbacks=[backup, PowerCut()], verbose=0)
except RuntimeError:
    history.append(int(model.optimizer.iterations))
log = model.fit(x, y, batch_size=16, epochs=4, callbacks=[backup], verbose=0)
history += [*log.history["loss"], int(model.optimizer.iterations)]
