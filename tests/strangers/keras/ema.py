"""The optimizer keeps a moving average of the weights and puts it in at the end."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(40)

x = np.random.randn(64, 5).astype("float32")
y = np.random.randn(64, 2).astype("float32")
model = keras.Sequential([keras.Input((5,)), layers.Dense(7, "tanh"), layers.Dense(2)])
model.compile(
    keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=None), "mse"
)
swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
log = model.fit(
    x, y, batch_size=15, epochs=3, validation_data=(x[:20], y[:20]), callbacks=[swap], verbose=0
)

history = [*log.history["loss"], *log.history["val_loss"], model.evaluate(x, y, verbose=0)]
