"""An exponential moving average of the weights, kept beside the model, with a dropout net."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay):
        self.model, self.decay = copy.deepcopy(model).eval(), decay
        for p in self.model.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for mine, other in zip(self.model.state_dict().values(), model.state_dict().values()):
            if mine.dtype.is_floating_point:
                mine.mul_(self.decay).add_(other, alpha=1 - self.decay)
            else:
                mine.copy_(other)


torch.manual_seed(13)
data = TensorDataset(torch.randn(53, 7), torch.randint(0, 4, (53,)))
model = nn.Sequential(
    nn.Linear(7, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4)
)
ema = EMA(model, 0.9)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=12, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        ema.update(model)
    with torch.no_grad():
        history.append(F.cross_entropy(ema.model(data.tensors[0]), data.tensors[1]).item())
models = [model, ema.model]
