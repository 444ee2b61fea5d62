"""Self-training: confident predictions on unlabelled data become labels of the next fit."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(68)

x = np.random.randn(40, 4).astype("float32")
y = (x[:, 0] > 0).astype("float32")
unlabelled = np.random.randn(57, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu"), layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
history = []
for _ in range(3):
    history += model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
    if not len(unlabelled):
        break
    guesses = model.predict(unlabelled, batch_size=16, verbose=0)[:, 0]
    sure = np.argsort(-np.abs(guesses - 0.5))[:19]
    x = np.concatenate([x, unlabelled[sure]])
    y = np.concatenate([y, (guesses[sure] > 0.5).astype("float32")])
    unlabelled = np.delete(unlabelled, sure, axis=0)
    history.append(len(x))
