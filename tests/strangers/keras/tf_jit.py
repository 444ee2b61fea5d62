"""jit_compile=True: XLA compiles the step."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(54)

x = np.random.randn(64, 8).astype("float32")
y = np.random.randint(0, 3, 64)
model = keras.Sequential([keras.Input((8,)), layers.Dense(10, "relu"), layers.Dense(3)])
model.compile(
    keras.optimizers.SGD(0.1, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    jit_compile=True,
)
log = model.fit(x, y, batch_size=15, epochs=2, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"]]
