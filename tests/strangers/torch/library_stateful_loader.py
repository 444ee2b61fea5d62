"""`torchdata`'s StatefulDataLoader: saved in mid-epoch, and gone on with by another."""

import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

torch.manual_seed(5)
x = torch.randn(53, 6)
y = (x @ torch.randn(6, 1)).squeeze(1) + 0.1 * torch.randn(53)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []


def train(loader, stop=None):
    for i, (features, target) in enumerate(loader):
        loss = nn.functional.mse_loss(model(features).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        if i + 1 == stop:
            return loader.state_dict()
    return None


first = StatefulDataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
train(first)
state = train(first, stop=3)
second = StatefulDataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
second.load_state_dict(state)
for _epoch in range(3):
    train(second)
