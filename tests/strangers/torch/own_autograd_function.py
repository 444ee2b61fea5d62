"""A binary layer: signs forwards, a straight line backwards."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class Binary(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.two(Sign.apply(self.one(x)))


torch.manual_seed(48)
data = TensorDataset(torch.randn(46, 6), torch.randint(0, 3, (46,)))
model = Binary()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        loss = nn.functional.multi_margin_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
