"""Monte Carlo dropout: the trained model is called with training=True many times."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(315)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(12, "relu"), layers.Dropout(0.3), layers.Dense(2)]
)


def likelihood(y_true, y_pred):
    mean, log = y_pred[:, :1], y_pred[:, 1:]
    return 0.5 * ops.exp(-log) * ops.square(y_true - mean) + 0.5 * log


model.compile(keras.optimizers.SGD(0.05), likelihood)
history = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
draws = np.stack([ops.convert_to_numpy(model(x[:11], training=True)) for _ in range(4)])
history += [float(v) for v in draws.std(0)[:, 0]]
history += model.fit(x, y, batch_size=16, epochs=1, verbose=0).history["loss"]
