"""Two views of each batch go through the net as one tensor, and should agree."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(71)
data = TensorDataset(torch.randn(43, 6), torch.randint(0, 3, (43,)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(16, 3)
        self.project = nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.2), nn.Linear(8, 4))

    def forward(self, x):
        h = self.trunk(x)
        return self.head(h), F.normalize(self.project(h), dim=-1)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        views = torch.cat([x, x.flip(1)])
        views = views + 0.1 * torch.randn_like(views)
        scores, z = model(views)
        one, two = z.chunk(2)
        loss = F.cross_entropy(scores, torch.cat([y, y])) + (1 - (one * two).sum(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
