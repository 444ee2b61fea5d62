"""A trunk with two heads, of which each batch uses one or both; weights of tasks are learnt."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.first_head, self.second_head = nn.Linear(10, 3), nn.Linear(10, 1)
        self.trunk = nn.Sequential(nn.Linear(6, 10), nn.ReLU())
        self.log_variance = nn.Parameter(torch.zeros(2))

    def forward(self, x, task):
        h = self.trunk(x)
        return (
            self.first_head(h) if task != "value" else None,
            self.second_head(h).squeeze(1) if task != "class" else None,
        )


torch.manual_seed(43)
data = TensorDataset(torch.randn(47, 6), torch.randint(0, 3, (47,)), torch.randn(47))
model = MultiTask()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for epoch in range(3):
    for i, (x, kind, value) in enumerate(DataLoader(data, batch_size=8, shuffle=True)):
        task = ("both", "value", "class")[(epoch + i) % 3]
        logits, guess = model(x, task)
        loss = 0.0
        if logits is not None:
            weight = torch.exp(-model.log_variance[0])
            loss = loss + weight * F.cross_entropy(logits, kind) + model.log_variance[0]
        if guess is not None:
            weight = torch.exp(-model.log_variance[1])
            loss = loss + weight * F.mse_loss(guess, value) + model.log_variance[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
