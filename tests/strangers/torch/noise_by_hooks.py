"""Each gradient is brought to a length and given noise as it comes, by hooks."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(134)
data = TensorDataset(torch.randn(43, 6), torch.randn(43, 3))
model = nn.Sequential(nn.Linear(6, 12), nn.Softplus(), nn.Linear(12, 3))
lengths = []


def noisy(grad):
    lengths.append(grad.norm().item())
    grad = grad / max(1.0, lengths[-1])
    return grad + 0.02 * torch.randn_like(grad)


optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for p in model.parameters():
    p.register_hook(noisy)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
history += lengths
