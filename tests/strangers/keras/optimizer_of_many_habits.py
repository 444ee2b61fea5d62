"""Averaged weights, accumulation, decay, clipping by the global norm and a schedule, in one."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(325)

x = np.random.randn(78, 5).astype("float32")
y = np.random.randint(0, 3, 78)
model = keras.Sequential([keras.Input((5,)), layers.Dense(8, "relu"), layers.Dense(3)])
rates = keras.optimizers.schedules.CosineDecay(
    0.0, 12, warmup_target=0.2, warmup_steps=4, alpha=0.01
)
model.compile(
    keras.optimizers.SGD(
        rates,
        momentum=0.9,
        nesterov=True,
        weight_decay=0.01,
        global_clipnorm=0.5,
        use_ema=True,
        ema_momentum=0.9,
        ema_overwrite_frequency=3,
        gradient_accumulation_steps=2,
    ),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
log = model.fit(x, y, batch_size=16, epochs=4, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"]]
