"""One model through many of Keras's losses, compiled anew each time."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(325)

x = np.random.randn(46, 6).astype("float32")
y = np.eye(3)[np.random.randint(0, 3, 46)].astype("float32")
model = keras.Sequential([keras.Input((6,)), layers.Dense(9, "tanh"), layers.Dense(3, "softmax")])
history = []
for loss in (
    keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
    keras.losses.CategoricalFocalCrossentropy(),
    keras.losses.BinaryFocalCrossentropy(apply_class_balancing=True),
    keras.losses.Poisson(),
    keras.losses.LogCosh(),
    keras.losses.CosineSimilarity(),
    keras.losses.CategoricalHinge(),
    keras.losses.SquaredHinge(),
    keras.losses.MeanSquaredLogarithmicError(reduction="sum"),
    keras.losses.KLDivergence(reduction="mean_with_sample_weight"),
    "log_cosh",
):
    model.compile(keras.optimizers.SGD(0.01), loss)
    w = np.random.uniform(0.5, 2, 46).astype("float32")
    history += model.fit(x, y, sample_weight=w, batch_size=12, epochs=1, verbose=0).history["loss"]
