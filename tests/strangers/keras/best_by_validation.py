"""EarlyStopping, ModelCheckpoint and ReduceLROnPlateau, each by a figure of the validation."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(320)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(30, "relu"), layers.Dropout(0.1), layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
calls = [
    keras.callbacks.EarlyStopping(
        "val_mae", patience=3, restore_best_weights=True, start_from_epoch=1
    ),
    keras.callbacks.ModelCheckpoint(
        "best.weights.h5", "val_loss", save_best_only=True, save_weights_only=True
    ),
    keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.3, patience=1, min_delta=0.01),
]
log = model.fit(
    x,
    y,
    batch_size=16,
    epochs=12,
    validation_split=0.25,
    validation_batch_size=7,
    callbacks=calls,
    verbose=0,
).history
history = [each for name in sorted(log) for each in log[name]]
model.load_weights("best.weights.h5")
history += [float(v) for v in model.evaluate(x, y, batch_size=9, verbose=0)]
