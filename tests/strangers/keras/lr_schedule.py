"""A cosine decay with warm-up, per step, inside the optimizer."""

import keras
import numpy as np

keras.utils.set_random_seed(19)

x = np.random.randn(77, 5).astype("float32")
y = np.random.randint(0, 2, (77, 1))
epochs, batch = 4, 16
steps = epochs * -(-len(x) // batch)
rate = keras.optimizers.schedules.CosineDecay(
    0.0, decay_steps=steps - 4, warmup_target=0.3, warmup_steps=4
)
model = keras.Sequential(
    [keras.Input((5,)), keras.layers.Dense(9, "relu"), keras.layers.Dense(1, "sigmoid")]
)
model.compile(keras.optimizers.SGD(rate, momentum=0.9), "binary_crossentropy", metrics=["accuracy"])
log = model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"]]
history += [float(model.optimizer.iterations), float(model.optimizer.learning_rate)]
