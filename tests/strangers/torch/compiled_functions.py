"""A compiled net whose gradient is held within bounds by a function of the script's own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Bounded(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.view_as(x)

    @staticmethod
    def backward(_, gradient):
        return gradient.clamp(-0.002, 0.002)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 2)

    def forward(self, x):
        return self.last(Bounded.apply(torch.tanh(self.first(x))))


torch.manual_seed(131)
data = TensorDataset(torch.randn(48, 6), torch.randn(48, 2))
model = Net()
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=12, shuffle=True):
        loss = nn.functional.mse_loss(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
