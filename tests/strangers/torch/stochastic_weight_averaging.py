"""Weight averaging by torch's own tools; BatchNorm's statistics are made anew at the end."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(14)
data = TensorDataset(torch.randn(55, 6), torch.randn(55, 2))
loader = DataLoader(data, batch_size=11, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
history = []
for epoch in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    if epoch >= 2:
        averaged.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
update_bn(loader, averaged)
averaged.eval()
with torch.no_grad():
    history.append(nn.functional.mse_loss(averaged(data.tensors[0]), data.tensors[1]).item())
models = [model, averaged]
