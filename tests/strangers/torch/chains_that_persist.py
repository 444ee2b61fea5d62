"""A restricted Boltzmann machine by persistent contrastive divergence."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Machine(nn.Module):
    def __init__(self, visible, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, visible) * 0.1)
        self.v_bias = nn.Parameter(torch.zeros(visible))
        self.h_bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, v):
        hidden = nn.functional.softplus(v @ self.weight.t() + self.h_bias).sum(1)
        return -(v @ self.v_bias) - hidden

    def gibbs(self, v):
        h = torch.bernoulli(torch.sigmoid(v @ self.weight.t() + self.h_bias))
        return torch.bernoulli(torch.sigmoid(h @ self.weight + self.v_bias))


torch.manual_seed(214)
data = TensorDataset((torch.rand(48, 10) < torch.linspace(0.1, 0.9, 10)).float())
model = Machine(10, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
chains, history = None, []
for _epoch in range(5):
    for (v,) in DataLoader(data, batch_size=8, shuffle=True):
        if chains is None:
            chains = v.clone()
        with torch.no_grad():
            for _ in range(2):
                chains = model.gibbs(chains)
        loss = model(v).mean() - model(chains).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
