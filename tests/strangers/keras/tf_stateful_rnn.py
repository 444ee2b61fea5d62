"""A stateful RNN over long series: row i of each batch goes on where row i left."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(67)

series = np.cumsum(np.random.randn(6, 41), axis=1).astype("float32") * 0.1
x = np.stack([series[:, t : t + 10] for t in (0, 10, 20, 30)]).reshape(24, 10, 1)
y = np.stack([series[:, t + 10 : t + 11] for t in (0, 10, 20, 30)]).reshape(24, 1)
model = keras.Sequential(
    [keras.Input(batch_shape=(6, 10, 1)), layers.GRU(5, stateful=True), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.1), "mse")
history = []
for _ in range(3):
    log = model.fit(x, y, batch_size=6, epochs=1, shuffle=False, verbose=0)
    history += log.history["loss"]
    model.layers[0].reset_state()
