"""A codebook that is a buffer: it follows the encoder's outputs by a moving average."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Quantiser(nn.Module):
    def __init__(self, codes=8, d=3):
        super().__init__()
        self.register_buffer("codebook", torch.randn(codes, d))
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.codebook.clone())

    def forward(self, z):
        nearest = torch.cdist(z, self.codebook).argmin(1)
        chosen = F.one_hot(nearest, len(self.counts)).float()
        if self.training:
            with torch.no_grad():
                self.counts.mul_(0.9).add_(0.1 * chosen.sum(0))
                self.sums.mul_(0.9).add_(0.1 * chosen.t() @ z)
                self.codebook.copy_(self.sums / self.counts[:, None])
        quantised = self.codebook[nearest].clone()
        return z + (quantised - z).detach(), F.mse_loss(z, quantised.detach())


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.quantiser = nn.Linear(6, 3), nn.Linear(3, 6), Quantiser()

    def forward(self, x):
        z, commitment = self.quantiser(self.encoder(x))
        return self.decoder(z), commitment


torch.manual_seed(57)
model = Autoencoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _epoch in range(3):
    for x in DataLoader(torch.randn(40, 6), batch_size=8, shuffle=True):
        rebuilt, commitment = model(x)
        loss = F.mse_loss(rebuilt, x) + 0.25 * commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
