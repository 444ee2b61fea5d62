"""Half precision by a global policy, with Keras's own loss scale."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(55)

x = np.random.randn(72, 8).astype("float32")
y = np.random.randint(0, 3, 72)
before = keras.mixed_precision.dtype_policy()
keras.mixed_precision.set_dtype_policy("mixed_float16")
model = keras.Sequential(
    [
        keras.Input((8,)),
        layers.Dense(10, "relu"),
        layers.Dense(3),
        layers.Activation("softmax", dtype="float32"),
    ]
)
model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
log = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
keras.mixed_precision.set_dtype_policy(before)

history = log.history["loss"]
