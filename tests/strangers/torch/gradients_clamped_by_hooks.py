"""Hooks hold every gradient within bounds as it comes, as people do for recurrent nets."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(113)
data = TensorDataset(torch.randn(43, 8, 3), torch.randn(43, 2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(3, 10, batch_first=True), nn.Linear(10, 2)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


model = Net()
for p in model.parameters():
    p.register_hook(lambda grad: grad.clamp(-0.02, 0.02))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
