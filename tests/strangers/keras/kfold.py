"""Cross-validation: a new model for each fold, on parts of one permutation."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(30)

x = np.random.randn(76, 6).astype("float32")
y = (x[:, 0] * 2 - x[:, 3] + np.random.randn(76) * 0.1).astype("float32")
folds = np.array_split(np.random.permutation(76), 3)


def build():
    net = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "relu"), layers.Dropout(0.2), layers.Dense(1)]
    )
    net.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return net


models, history = [], []
for k, held_out in enumerate(folds):
    rest = np.concatenate([fold for j, fold in enumerate(folds) if j != k])
    model = build()
    log = model.fit(x[rest], y[rest], batch_size=16, epochs=2, verbose=0)
    history += log.history["loss"]
    history += model.evaluate(x[held_out], y[held_out], verbose=0)
    models.append(model)
