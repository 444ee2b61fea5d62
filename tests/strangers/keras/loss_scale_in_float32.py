"""A LossScaleOptimizer whose scale grows soon, and overflows once."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(115)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

inner = keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=1.0)
optimizer = keras.optimizers.LossScaleOptimizer(
    inner, initial_scale=2.0**120, dynamic_growth_steps=3
)
model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "relu"), layers.Dense(1)])
model.compile(optimizer, "mse")
history = model.fit(100 * x, 50 * y, batch_size=16, epochs=3, verbose=0).history["loss"]
history += [float(np.log2(ops.convert_to_numpy(optimizer.dynamic_scale)))]
