"""A generator and a discriminator, each with its optimizer; noise as large as the batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)
real_data = TensorDataset(torch.randn(46, 6) * 0.5 + 1)
generator = nn.Sequential(nn.Linear(4, 12), nn.LeakyReLU(0.2), nn.Linear(12, 6))
discriminator = nn.Sequential(nn.Linear(6, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1), nn.Sigmoid())
optimizer_d = torch.optim.SGD(discriminator.parameters(), lr=0.05, momentum=0.5)
optimizer_g = torch.optim.SGD(generator.parameters(), lr=0.05, momentum=0.5)
criterion = nn.BCELoss()
fixed_noise = torch.randn(3, 4)
history = []
for _epoch in range(3):
    for (real,) in DataLoader(real_data, batch_size=10, shuffle=True):
        size = real.size(0)
        discriminator.zero_grad()
        label = torch.full((size,), 1.0)
        error_real = criterion(discriminator(real).view(-1), label)
        error_real.backward()
        fake = generator(torch.randn(size, 4))
        label.fill_(0.0)
        error_fake = criterion(discriminator(fake.detach()).view(-1), label)
        error_fake.backward()
        optimizer_d.step()

        generator.zero_grad()
        label.fill_(1.0)
        error_g = criterion(discriminator(fake).view(-1), label)
        error_g.backward()
        optimizer_g.step()
        history += [error_real.item() + error_fake.item(), error_g.item()]
    with torch.no_grad():
        history.append(generator(fixed_noise).mean().item())
models = {"generator": generator, "discriminator": discriminator}
