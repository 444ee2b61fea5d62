"""A torch loop with a Keras loss and a Keras optimizer."""

import keras
import numpy as np
import torch
from keras import layers
from torch.utils.data import DataLoader, TensorDataset

keras.utils.set_random_seed(48)

x = torch.from_numpy(np.random.randn(70, 5).astype("float32"))
y = torch.from_numpy(np.random.randint(0, 3, 70))
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = keras.Sequential([keras.Input((5,)), layers.Dense(8, "relu"), layers.Dense(3)])
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
metric = keras.metrics.SparseCategoricalAccuracy()

history = []
for _ in range(2):
    for a, b in loader:
        scores = model(a, training=True)
        loss = loss_fn(b, scores)
        model.zero_grad()
        loss.backward()
        weights = list(model.trainable_weights)
        with torch.no_grad():
            optimizer.apply([weight.value.grad for weight in weights], weights)
        metric.update_state(b, scores)
        history.append(loss.item())
    metric.reset_state()
