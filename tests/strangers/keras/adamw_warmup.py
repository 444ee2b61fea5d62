"""AdamW with a schedule of one's own."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(80)


class Noam(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, width, warmup):
        super().__init__()
        self.width, self.warmup = width, warmup

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1.0
        return self.width**-0.5 * ops.minimum(step**-0.5, step * self.warmup**-1.5) * 0.05


x = np.random.randn(86, 6).astype("float32")
y = np.random.randint(0, 3, 86)
model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(8, "gelu"), layers.LayerNormalization(), layers.Dense(3)]
)
model.compile(
    keras.optimizers.AdamW(Noam(8, 6), beta_2=0.98, weight_decay=0.01, clipnorm=1.0),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0)

history = log.history["loss"]
