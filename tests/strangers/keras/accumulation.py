"""gradient_accumulation_steps: the optimizer steps after every third batch."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(41)

x = np.random.randn(75, 5).astype("float32")
y = np.random.randint(0, 3, 75)
model = keras.Sequential([keras.Input((5,)), layers.Dense(8, "relu"), layers.Dense(3)])
model.compile(
    keras.optimizers.SGD(0.2, momentum=0.9, gradient_accumulation_steps=3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
log = model.fit(x, y, batch_size=8, epochs=3, verbose=0)

history = [*log.history["loss"], int(model.optimizer.iterations)]
