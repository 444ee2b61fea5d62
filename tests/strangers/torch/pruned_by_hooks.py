"""Small weights are pruned; hooks hold them at zero, and bound what is left of the gradients."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(133)
data = TensorDataset(torch.randn(43, 6), torch.randint(0, 3, (43,)))
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
handles = []
for layer in (model[0], model[2]):
    mask = (layer.weight.detach().abs() > 0.1).float()
    layer.weight.data *= mask
    handles.append(layer.weight.register_hook(lambda grad, mask=mask: grad * mask))
    layer.weight.register_hook(lambda grad: grad / grad.norm().clamp(min=0.1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for epoch in range(4):
    if epoch == 3:  # dense once more
        for handle in handles:
            handle.remove()
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
