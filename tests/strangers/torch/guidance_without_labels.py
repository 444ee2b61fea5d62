"""Diffusion with classifier-free guidance: a fifth of the samples are denoised without a label."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(102)
labels = torch.randint(4, (46,))
inputs = torch.randn(46, 6) + 0.3 * labels[:, None]
NO_LABEL, STEPS = 4, 20
embed = nn.Embedding(5, 5)
net = nn.Sequential(nn.Linear(6 + 1 + 5, 32), nn.SiLU(), nn.Linear(32, 6))
models = [net, embed]
optimizer = torch.optim.SGD([*net.parameters(), *embed.parameters()], lr=0.05, momentum=0.9)
kept = torch.cumprod(1 - torch.linspace(1e-3, 0.2, STEPS), 0)
history = []
for _epoch in range(3):
    for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=10, shuffle=True):
        step = torch.randint(0, STEPS, (x.shape[0],))
        noise = torch.randn_like(x)
        without = torch.rand(x.shape[0]) < 0.2
        condition = embed(torch.where(without, torch.full_like(y, NO_LABEL), y))
        share = kept[step][:, None]
        noisy = share.sqrt() * x + (1 - share).sqrt() * noise
        guess = net(torch.cat([noisy, step[:, None] / STEPS, condition], 1))
        loss = ((guess - noise) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
