"""A streamed table of `datasets`: mapped, shuffled by a buffer, another order in each epoch."""

import numpy as np
import torch
from datasets import IterableDataset
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(8)
weights = np.random.default_rng(8).normal(size=5)


def rows():
    source = np.random.default_rng(9)
    for _ in range(61):
        features = source.normal(size=5)
        yield {"features": features.astype("float32"), "value": float(features @ weights)}


table = IterableDataset.from_generator(rows)
table = table.map(lambda row: {"label": int(row["value"] > 0)}).remove_columns("value")
table = table.shuffle(seed=42, buffer_size=16).with_format("torch")
loader = DataLoader(table, batch_size=8)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for epoch in range(3):
    table.set_epoch(epoch)
    for batch in loader:
        loss = nn.functional.cross_entropy(model(batch["features"]), batch["label"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.item())
    model.eval()
    right = seen = 0
    with torch.no_grad():
        for batch in DataLoader(table, batch_size=16):
            guess = model(batch["features"]).argmax(1)
            right, seen = right + (guess == batch["label"]).sum().item(), seen + len(guess)
    history += [right, seen]
    model.train()
