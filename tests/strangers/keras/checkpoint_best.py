"""Only the best weights are kept in a file, and loaded at the end."""

import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(18)

x = np.random.rand(82, 4).astype("float32")
y = np.sin(x.sum(axis=1, keepdims=True) * 3)
model = keras.Sequential([keras.Input((4,)), layers.Dense(12, activation="tanh"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.3), loss="mse", metrics=["mae"])

path = Path(tempfile.gettempdir()) / "best.weights.h5"
best = keras.callbacks.ModelCheckpoint(
    str(path), monitor="val_loss", save_best_only=True, save_weights_only=True
)
log = model.fit(x, y, batch_size=16, epochs=5, validation_split=0.2, callbacks=[best], verbose=0)
at_end = model.evaluate(x, y, verbose=0)
model.load_weights(str(path))
at_best = model.evaluate(x, y, verbose=0)

history = [*log.history["val_loss"], *at_end, *at_best]
