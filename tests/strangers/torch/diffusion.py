"""A diffusion model: noise is added by a random amount, and the net says which."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(18)
STEPS = 50
betas = torch.linspace(1e-4, 0.02, STEPS)
kept = torch.cumprod(1 - betas, 0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(STEPS, 8)
        self.net = nn.Sequential(nn.Linear(10, 24), nn.SiLU(), nn.Linear(24, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], -1))


angle = torch.rand(57) * 6.28
data = TensorDataset(torch.stack([angle.cos(), angle.sin()], 1))
model = Denoiser()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(4):
    for (clean,) in DataLoader(data, batch_size=10, shuffle=True):
        t = torch.randint(0, STEPS, (clean.shape[0],))
        noise = torch.randn_like(clean)
        scale = kept[t][:, None]
        noisy = scale.sqrt() * clean + (1 - scale).sqrt() * noise
        loss = F.mse_loss(model(noisy, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
model.eval()
with torch.no_grad():
    x = torch.randn(4, 2)
    for t in reversed(range(STEPS)):
        predicted = model(x, torch.full((4,), t))
        x = (x - betas[t] / (1 - kept[t]).sqrt() * predicted) / (1 - betas[t]).sqrt()
history.append(x.mean().item())
