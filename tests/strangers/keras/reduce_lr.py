"""ReduceLROnPlateau on the training loss; the learning rate is part of the log."""

import keras
import numpy as np

keras.utils.set_random_seed(16)

x = np.random.randn(58, 5).astype("float32")
y = (x[:, :1] > 0).astype("float32")
model = keras.Sequential(
    [
        keras.Input((5,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.GaussianNoise(0.3),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.SGD(0.8), loss="binary_crossentropy")
plateau = keras.callbacks.ReduceLROnPlateau(
    monitor="loss", factor=0.5, patience=0, min_delta=0.02, min_lr=0.01
)
log = model.fit(x, y, batch_size=12, epochs=6, callbacks=[plateau], verbose=0)

history = [*log.history["loss"], *log.history["learning_rate"]]
