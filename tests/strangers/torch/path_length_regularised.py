"""A generator whose path lengths are held near their running mean, every few steps."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def path_regularize(fake, latents, mean_path_length, decay=0.1):
    noise = torch.ones_like(fake) / math.sqrt(fake.shape[1])
    (grad,) = torch.autograd.grad((fake * noise).sum(), latents, create_graph=True)
    path_lengths = grad.pow(2).sum(1).sqrt()
    path_mean = mean_path_length + decay * (path_lengths.mean() - mean_path_length)
    path_penalty = (path_lengths - path_mean).pow(2).mean()
    return path_penalty, path_mean.detach()


torch.manual_seed(212)
data = TensorDataset(torch.randn(58, 6), torch.randn(58, 8))
generator = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
g_optimizer = torch.optim.SGD(generator.parameters(), lr=0.05)
d_optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)
mean_path_length, step, history = 0, 0, []
for _epoch in range(4):
    for z, real in DataLoader(data, batch_size=8, shuffle=True):
        fake = generator(z)
        d_loss = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(real)).mean()
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()
        g_loss = F.softplus(-critic(generator(z))).mean()
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
        if step % 4 == 0:
            z = z.clone().requires_grad_(True)
            penalty, mean_path_length = path_regularize(generator(z), z, mean_path_length)
            g_optimizer.zero_grad()
            (2.0 * 4 * penalty).backward()
            g_optimizer.step()
            history.append(float(mean_path_length))
        step += 1
models = [generator, critic]
