"""global_clipnorm that bites, and weight decay that leaves biases alone."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(42)

x = np.random.randn(70, 6).astype("float32") * 3
y = np.random.randn(70, 1).astype("float32") * 4
model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "relu"), layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5, weight_decay=0.01)
optimizer.exclude_from_weight_decay(var_names=["bias"])
model.compile(optimizer, "mse")
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0)

history = log.history["loss"]
