"""A variational autoencoder whose loss is summed over the batch, as in the paper."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

torch.manual_seed(2)
data = torch.rand(53, 20)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(20, 12)
        self.mean, self.log_variance = nn.Linear(12, 3), nn.Linear(12, 3)
        self.back = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 20), nn.Sigmoid())

    def forward(self, x):
        h = F.relu(self.hidden(x))
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.back(z), mean, log_variance


def loss_function(rebuilt, x, mean, log_variance):
    likelihood = F.binary_cross_entropy(rebuilt, x, reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return likelihood + divergence


model = VAE()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(data, batch_size=12, shuffle=True)
history = []
for _epoch in range(3):
    total = 0.0
    for x in loader:
        optimizer.zero_grad()
        loss = loss_function(*((out := model(x))[0], x, *out[1:]))
        loss.backward()
        total += loss.item()
        optimizer.step()
    history.append(total / len(data))
