"""Differentially private training by `opacus`: gradients a sample, clipped and with noise."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)
x, y = torch.randn(43, 6), torch.randint(0, 3, (43,))
train = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
engine = PrivacyEngine()
model, optimizer, train = engine.make_private(
    module=model,
    optimizer=optimizer,
    data_loader=train,
    noise_multiplier=0.8,
    max_grad_norm=1.0,
    poisson_sampling=False,
)
history = []
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
history.append(engine.get_epsilon(1e-5))
models = {"trained": model._module}
