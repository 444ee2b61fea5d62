"""Two tasks, whose losses are put into one tensor and weighed by learnt uncertainties."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.Tanh())
        self.kind, self.size = nn.Linear(12, 4), nn.Linear(12, 1)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x, kind, size):
        hidden = self.body(x)
        losses = torch.stack(
            [
                F.cross_entropy(self.kind(hidden), kind, label_smoothing=0.1),
                F.mse_loss(self.size(hidden).squeeze(1), size),
            ]
        )
        return (torch.exp(-self.log_var) * losses + self.log_var).sum()


torch.manual_seed(71)
data = TensorDataset(torch.randn(37, 6), torch.randint(0, 4, (37,)), torch.randn(37))
model = TwoTasks()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(3):
    for x, kind, size in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = model(x, kind, size)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
