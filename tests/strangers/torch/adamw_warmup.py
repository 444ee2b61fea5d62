"""AdamW with a warm-up by a lambda, a schedule by step, spectral normalisation, and a step that
is skipped where the gradient is not finite."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(68)
data = TensorDataset(torch.randn(52, 8), torch.randn(52, 2))
model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), spectral_norm(nn.Linear(16, 2)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 6))
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=12, shuffle=True):
        loss = nn.functional.smooth_l1_loss(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        if torch.isfinite(norm):
            optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        history += [loss.item(), norm.item()]
