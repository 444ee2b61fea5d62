"""LoRA: a model is trained, frozen but for low-rank parts, and trained on."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(306)

x = np.random.randint(0, 20, (54, 6))
y = np.random.randint(0, 4, 54)
model = keras.Sequential(
    [
        keras.Input((6,), dtype="int32"),
        layers.Embedding(20, 8),
        layers.GlobalAveragePooling1D(),
        layers.Dense(12, "relu"),
        layers.Dense(4),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.2), loss)
history = list(model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"])
model.layers[0].enable_lora(2)
model.layers[2].enable_lora(3)
model.layers[3].trainable = False
model.compile(keras.optimizers.SGD(0.5, momentum=0.9), loss)
history += model.fit(x, y, batch_size=16, epochs=3, verbose=0).history["loss"]
