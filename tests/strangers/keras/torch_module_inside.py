"""Modules of torch's own between Keras's layers, as Keras's guide to them shows."""

import keras
import numpy as np
import torch
from keras import layers

keras.utils.set_random_seed(331)

x = np.random.randn(75, 8).astype("float32")
y = (np.sin(x[:, 0]) + x[:, 1] ** 2 > 1).astype("int32")
body = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.3)
)
model = keras.Sequential([layers.TorchModuleWrapper(body), layers.Dense(2)])
model.compile(
    keras.optimizers.SGD(0.05, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0)

history = [v for name in ("loss", "accuracy") for v in log.history[name]]
history += [float(each) for each in model.evaluate(x, y, verbose=0)]
history += body[1].running_mean.tolist()
