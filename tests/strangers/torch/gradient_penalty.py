"""A critic whose gradient between real and made samples is held at one, and its generator."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(12)
critic = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 1))
generator = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 3))
optimizer_c = torch.optim.SGD(critic.parameters(), lr=0.02)
optimizer_g = torch.optim.SGD(generator.parameters(), lr=0.02)


def penalty(real, fake):
    share = torch.rand(real.size(0), 1)
    between = (share * real + (1 - share) * fake).requires_grad_(True)
    score = critic(between)
    (gradient,) = torch.autograd.grad(
        score, between, torch.ones_like(score), create_graph=True, retain_graph=True
    )
    return ((gradient.norm(2, dim=1) - 1) ** 2).mean()


history = []
loader = DataLoader(torch.randn(38, 3) + 2, batch_size=8, shuffle=True)
for _epoch in range(3):
    for i, real in enumerate(loader):
        optimizer_c.zero_grad()
        fake = generator(torch.randn(real.size(0), 2)).detach()
        loss = -critic(real).mean() + critic(fake).mean() + 10.0 * penalty(real, fake)
        loss.backward()
        optimizer_c.step()
        history.append(loss.item())
        if i % 2 == 0:
            optimizer_g.zero_grad()
            (-critic(generator(torch.randn(real.size(0), 2))).mean()).backward()
            optimizer_g.step()
models = [critic, generator]
