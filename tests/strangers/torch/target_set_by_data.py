"""A target network follows the one that learns; its parameters' data are set anew at each step."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)
loader = DataLoader(TensorDataset(torch.randn(45, 8)), batch_size=12, shuffle=True)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Linear(8, 6)
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            t = self.target(x)
        return F.mse_loss(self.online(x * (torch.rand_like(x) > 0.2)), t + 0.1)


model = Both()
opt = torch.optim.SGD(model.online.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(3):
    for (x,) in loader:
        loss = model(x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for a, b in zip(model.online.parameters(), model.target.parameters()):
            b.data = 0.9 * b.data + 0.1 * a.data
        history.append(loss.item())
