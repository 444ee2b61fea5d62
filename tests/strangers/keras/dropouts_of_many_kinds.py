"""Dropout of many kinds: spatial, alpha, Gaussian, of shapes, within recurrent layers."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(129)

x = np.random.randn(62, 8, 6).astype("float32")
y = x.mean(axis=1)[:, :1]
model = keras.Sequential(
    [
        keras.Input((8, 6)),
        layers.SpatialDropout1D(0.2),
        layers.GaussianDropout(0.1),
        layers.Dropout(0.2, noise_shape=(None, 1, 6)),
        layers.Bidirectional(
            layers.LSTM(4, dropout=0.2, recurrent_dropout=0.2, return_sequences=True)
        ),
        layers.TimeDistributed(layers.Dense(5, "selu")),
        layers.AlphaDropout(0.1),
        layers.GRU(4, dropout=0.3),
        layers.Dense(1),
    ]
)
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
