"""A loop of fits of one epoch, whose data are drawn anew; a schedule of one's own."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(366)


class Steps(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.2 / (1.0 + ops.cast(step, "float32") / 4.0)


model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "tanh"), layers.GaussianNoise(0.1), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(Steps(), momentum=0.9), "mse")
history = []
for epoch in range(4):
    x = np.random.randn(37 + epoch, 6).astype("float32")
    history += model.fit(
        x,
        np.sin(x[:, :1]),
        batch_size=16,
        epochs=epoch + 1,
        initial_epoch=epoch,
        verbose=0,
        callbacks=[keras.callbacks.BackupAndRestore(f"b{epoch}", save_freq=2)]
        if epoch == 3
        else [],
    ).history["loss"]
