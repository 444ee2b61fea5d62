"""A denoising autoencoder: the noise is drawn once, by NumPy, before training."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(5)

clean = np.sin(np.linspace(0, 6, 20)[None, :] * np.random.uniform(0.5, 2.0, (93, 1)))
clean = clean.astype("float32")
noisy = clean + np.random.normal(scale=0.2, size=clean.shape).astype("float32")

signal = keras.Input((20,))
code = layers.Dense(12, activation="tanh")(signal)
code = layers.Dense(3, name="code")(code)
hidden = layers.Dense(12, activation="tanh")(code)
restored = layers.Dense(20)(hidden)

model = keras.Model(signal, restored)
encoder = keras.Model(signal, code)
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
log = model.fit(
    noisy, clean, epochs=3, batch_size=16, shuffle=True, validation_data=(clean, clean), verbose=0
)
codes = encoder.predict(clean[:7], verbose=0)

history = [*log.history["loss"], *log.history["val_loss"], *codes.ravel().tolist()]
