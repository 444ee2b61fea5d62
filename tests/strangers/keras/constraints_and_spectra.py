"""Weights under constraints, and layers normalised by spectrum, by weight and by group."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(312)

x = np.random.randn(70, 6, 6, 2).astype("float32")
y = np.random.randint(0, 3, 70)
model = keras.Sequential(
    [
        keras.Input((6, 6, 2)),
        layers.SpectralNormalization(layers.Conv2D(6, 3, activation="relu")),
        layers.GroupNormalization(3),
        layers.DepthwiseConv2D(2, depthwise_constraint=keras.constraints.MaxNorm(0.5)),
        layers.Flatten(),
        layers.Dense(8, "relu", kernel_constraint="unit_norm", bias_constraint="non_neg"),
        layers.UnitNormalization(),
        layers.Dense(3),
    ]
)
model.compile(
    keras.optimizers.SGD(0.1, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
log = model.fit(x, y, batch_size=16, epochs=2, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"]]
