"""Training goes on in a model that was saved whole and loaded again."""

import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(56)

x = np.random.randn(68, 5).astype("float32")
y = np.random.randn(68, 1).astype("float32")
model = keras.Sequential(
    [keras.Input((5,)), layers.Dense(8, "relu"), layers.Dropout(0.2), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
history = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "half.keras"
    model.save(path)
    model = keras.saving.load_model(path)
log = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
history += [*log.history["loss"], int(model.optimizer.iterations)]
