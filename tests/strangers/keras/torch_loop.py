"""A torch training loop over a Keras model: torch's loader, loss and optimizer."""

import keras
import numpy as np
import torch
from keras import layers
from torch.utils.data import DataLoader, TensorDataset

keras.utils.set_random_seed(47)

x = np.random.rand(71, 1, 8, 8).astype("float32")
y = np.random.randint(0, 4, 71)
loader = DataLoader(
    TensorDataset(torch.from_numpy(x).permute(0, 2, 3, 1), torch.from_numpy(y)),
    batch_size=16,
    shuffle=True,
)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(4, 3, activation="relu"),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(4),
    ]
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_fn = torch.nn.CrossEntropyLoss()

history = []
for _ in range(2):
    for images, labels in loader:
        logits = model(images, training=True)
        loss = loss_fn(logits, labels)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
