"""fit, then fit again with other sizes, then from another initial epoch; no seed but one."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(35)

x = np.random.randn(69, 5).astype("float32")
y = np.random.randn(69, 1).astype("float32")
model = keras.Sequential(
    [keras.Input((5,)), layers.Dense(8, "relu"), layers.Dropout(0.25), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
first = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
second = model.fit(x, y, batch_size=10, epochs=1, verbose=0)
third = model.fit(x[:40], y[:40], batch_size=7, initial_epoch=1, epochs=3, verbose=0)
after = np.random.rand(3)

history = [*first.history["loss"], *second.history["loss"], *third.history["loss"], *after.tolist()]
history.append(int(model.optimizer.iterations))
