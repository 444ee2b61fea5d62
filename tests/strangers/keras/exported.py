"""A model is exported for serving after training, and summed up."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(369)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "tanh"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
model.summary(print_fn=lambda line: None)
if keras.backend.backend() == "tensorflow":
    model.export("served", verbose=False)
    import tensorflow as tf

    history += [float(v) for v in np.asarray(tf.saved_model.load("served").serve(x[:5]))[:, 0]]
