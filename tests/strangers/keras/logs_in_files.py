"""CSVLogger and BackupAndRestore write files; the CSV is read again."""

import csv
import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(75)

x = np.random.randn(60, 4).astype("float32")
y = np.random.randn(60, 1).astype("float32")
model = keras.Sequential([keras.Input((4,)), layers.Dense(6, "relu"), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
folder = Path(tempfile.mkdtemp())
callbacks = [
    keras.callbacks.CSVLogger(folder / "log.csv"),
    keras.callbacks.BackupAndRestore(folder / "backup"),
    keras.callbacks.TerminateOnNaN(),
]
log = model.fit(x, y, batch_size=16, epochs=3, callbacks=callbacks, verbose=0)
history = log.history["loss"]
if (folder / "log.csv").exists():
    with (folder / "log.csv").open() as file:
        print([round(float(row["loss"]), 6) for row in csv.DictReader(file)])
