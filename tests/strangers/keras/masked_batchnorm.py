"""BatchNormalization over masked time steps, within a recurrent model."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(309)

x = np.random.randn(46, 7, 4).astype("float32")
for row, length in zip(x, np.random.randint(1, 8, 46), strict=True):
    row[length:] = 0
y = np.random.randn(46, 1).astype("float32")
model = keras.Sequential(
    [
        keras.Input((7, 4)),
        layers.Masking(),
        layers.BatchNormalization(),
        layers.TimeDistributed(layers.Dense(5, "relu")),
        layers.BatchNormalization(momentum=0.9),
        layers.GRU(6),
        layers.Dense(1),
    ]
)
model.compile(keras.optimizers.SGD(0.1), "mse")
log = model.fit(x, y, batch_size=12, epochs=3, validation_split=0.2, verbose=0).history
history = [each for name in sorted(log) for each in log[name]]
