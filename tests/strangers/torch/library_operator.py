"""A Fourier neural operator of `neuralop`, whose weights are complex, under its own loss."""

import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(20)
x = torch.randn(21, 1, 16, 16)
y = x.roll(1, -1)
model = FNO(n_modes=(4, 4), hidden_channels=6, in_channels=1, out_channels=1, n_layers=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
criterion = LpLoss(d=2, p=2)
history = []
for _ in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(a), b)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
models = {"trained": model}
