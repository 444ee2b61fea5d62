"""The forward pass in bfloat16 by autocast, the loss outside of it in float32."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(118)
data = TensorDataset(torch.randn(43, 8), torch.randint(0, 3, (43,)))
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        loss = nn.functional.cross_entropy(out.float(), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
