"""EarlyStopping on the training loss, and the best weights back."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(15)

x = np.random.randn(63, 6).astype("float32")
y = np.random.randn(63, 1).astype("float32")
model = keras.Sequential(
    [
        keras.Input((6,)),
        layers.Dense(16, activation="relu"),
        layers.Dropout(0.4),
        layers.Dense(1),
    ]
)
model.compile(keras.optimizers.SGD(0.15), loss="mse")
stop = keras.callbacks.EarlyStopping(
    monitor="loss", patience=1, min_delta=0.0, restore_best_weights=True
)
log = model.fit(x, y, batch_size=10, epochs=12, callbacks=[stop], verbose=0)

history = [*log.history["loss"], stop.best, stop.stopped_epoch]
