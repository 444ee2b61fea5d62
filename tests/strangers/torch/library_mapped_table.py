"""A table of `datasets`: mapped, split, its rows made tensors, one column made as it is read."""

import datasets
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

np.random.seed(2)
torch.manual_seed(2)
table = datasets.Dataset.from_dict({
    "pixels": np.random.rand(70, 12).astype("float32"),
    "label": np.random.randint(0, 3, 70),
})  # fmt: skip
table = table.map(lambda rows: {"bright": [max(p) for p in rows["pixels"]]}, batched=True)
table = table.filter(lambda row: row["bright"] > 0.7).train_test_split(test_size=0.25, seed=4)


def noisy(rows):
    pixels = torch.tensor(rows["pixels"])
    return {"x": pixels + 0.1 * torch.randn_like(pixels), "y": torch.tensor(rows["label"])}


train = table["train"].with_transform(noisy)
test = table["test"].with_format("torch")
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(4):
    for batch in DataLoader(train, batch_size=8, shuffle=True, drop_last=False):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    with torch.no_grad():
        for batch in DataLoader(test, batch_size=8):
            loss = nn.functional.cross_entropy(model(batch["pixels"]), batch["label"])
            history.append(loss.item())
