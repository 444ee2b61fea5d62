"""Two workers stay alive over the epochs; the collate function gives a record with named fields."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Record:
    x: torch.Tensor
    y: torch.Tensor

    def to(self, device):
        return Record(self.x.to(device), self.y.to(device))


class Squares(Dataset):
    def __init__(self):
        self.x = torch.linspace(-2, 2, 37)

    def __len__(self):
        return 37

    def __getitem__(self, i):
        return self.x[i], self.x[i] ** 2


def collate(samples):
    x, y = zip(*samples)
    return Record(torch.stack(x)[:, None], torch.stack(y)[:, None])


torch.manual_seed(108)
loader = DataLoader(
    Squares(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True,
    collate_fn=collate, prefetch_factor=2,
)  # fmt: skip
model = nn.Sequential(nn.Linear(1, 16), nn.ELU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
history = []
for _epoch in range(3):
    for batch in loader:
        batch = batch.to("cpu")
        loss = ((model(batch.x) - batch.y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
