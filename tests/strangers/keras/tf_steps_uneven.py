"""repeat and shuffle, steps that do not divide, initial_epoch, validation_freq."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(340)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(62, seed=5).repeat().batch(14)
model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "tanh"), layers.Dropout(0.2), layers.Dense(1)]
)
model.compile(
    keras.optimizers.SGD(
        keras.optimizers.schedules.PiecewiseConstantDecay([4, 9], [0.1, 0.05, 0.01])
    ),
    "mse",
    metrics=["mae"],
)
log = model.fit(
    data,
    epochs=5,
    initial_epoch=2,
    steps_per_epoch=3,
    validation_data=(x[:15], y[:15]),
    validation_freq=[3, 5],
    verbose=0,
).history
history = [each for name in sorted(log) for each in log[name]]
log = model.fit(data, epochs=2, steps_per_epoch=5, verbose=0).history
history += [each for name in sorted(log) for each in log[name]]
history += [float(v) for v in model.evaluate(data, steps=2, verbose=0)][:0]
