"""Activities are penalised: a sum over the batch, beside a mean."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(308)

x = np.random.randn(70, 8).astype("float32")
model = keras.Sequential(
    [
        keras.Input((8,)),
        layers.Dense(5, "relu", activity_regularizer=keras.regularizers.L1(0.01)),
        layers.ActivityRegularization(l2=0.02),
        layers.Dense(8, kernel_regularizer="l2"),
    ]
)
model.compile(keras.optimizers.SGD(0.1), "mse")
log = model.fit(x, x, batch_size=16, epochs=2, validation_split=0.2, verbose=0)

history = [*log.history["loss"], *log.history["val_loss"]]
