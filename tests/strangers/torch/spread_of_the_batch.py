"""A discriminator that is told how unlike each other the samples of its batch are."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.LeakyReLU(0.2))
        self.head = nn.Linear(13, 1)

    def forward(self, x):
        h = self.body(x)
        spread = h.var(0, correction=0).add(1e-8).sqrt().mean()
        return self.head(torch.cat([h, spread.expand(len(h), 1)], 1)).squeeze(1)


torch.manual_seed(174)
data = torch.randn(44, 6) * 2 + 1
generator = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 6))
discriminator = Discriminator()
models = [generator, discriminator]
steps = [torch.optim.Adam(m.parameters(), lr=2e-3, betas=(0.5, 0.99)) for m in models]
history = []
for _epoch in range(2):
    for real in DataLoader(data, batch_size=12, shuffle=True):
        fake = generator(torch.randn(len(real), 4))
        told = F.softplus(-discriminator(real)).mean()
        told = told + F.softplus(discriminator(fake.detach())).mean()
        steps[1].zero_grad()
        told.backward()
        steps[1].step()
        fooled = F.softplus(-discriminator(fake)).mean()
        steps[0].zero_grad()
        fooled.backward()
        steps[0].step()
        history.append(told.item() + fooled.item())
