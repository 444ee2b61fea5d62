"""An equivariant network of `e3nn`, on points with their neighbours."""

import torch
from e3nn import o3
from e3nn.nn import Gate
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(19)
x, y = torch.randn(43, 6), torch.randn(43, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        inner = o3.Irreps("4x0e + 4x0e + 4x1o")
        self.gate = Gate("4x0e", [torch.tanh], "4x0e", [torch.sigmoid], "4x1o")
        self.first = o3.FullyConnectedTensorProduct("2x1o", "2x1o", inner)
        self.last = o3.Linear(self.gate.irreps_out, "1x0e")

    def forward(self, x):
        return self.last(self.gate(self.first(x, x)))


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
history = []
for _ in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
models = {"trained": model}
