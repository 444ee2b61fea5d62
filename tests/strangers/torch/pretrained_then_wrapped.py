"""An encoder learns to restore its inputs; then it is the first part of a classifier."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(132)
x_all = torch.randn(43, 6)
labels = (x_all[:, 0] > x_all[:, 1]).long()


class Classifier(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(4, 2)
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.head(torch.relu(self.encoder(x))) / self.temperature


encoder = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4))
decoder = nn.Linear(4, 6)
autoencoder = nn.Sequential(encoder, decoder)
optimizer = torch.optim.SGD(autoencoder.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(2):
    for (x,) in DataLoader(TensorDataset(x_all), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(autoencoder(x), x)
        loss.backward()
        optimizer.step()
        history.append(loss.item())

model = Classifier(encoder)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _epoch in range(2):
    for x, y in DataLoader(TensorDataset(x_all, labels), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
