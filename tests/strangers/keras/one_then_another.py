"""A second model trains on what the first one gives, each with its own random numbers."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(74)

x = np.random.randn(62, 8).astype("float32")
y = np.random.randint(0, 3, 62)

coder = keras.Sequential(
    [keras.Input((8,)), layers.Dropout(0.2), layers.Dense(3, "tanh"), layers.Dense(8)]
)
coder.compile(keras.optimizers.SGD(0.1), "mse")
history = coder.fit(x, x, batch_size=16, epochs=2, verbose=0).history["loss"]

codes = keras.Model(coder.inputs, coder.layers[1].output).predict(x, verbose=0)
keep = np.random.rand(62) < 0.8
judge = keras.Sequential([keras.Input((3,)), layers.Dense(6, "relu"), layers.Dense(3, "softmax")])
judge.compile(keras.optimizers.SGD(0.2), "sparse_categorical_crossentropy")
history += judge.fit(codes[keep], y[keep], batch_size=10, epochs=2, verbose=0).history["loss"]
models = [coder, judge]
