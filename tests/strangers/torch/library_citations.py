"""One graph of `torch_geometric`, its nodes of training masked, as on Cora."""

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

torch.manual_seed(1)
data = Data(
    x=torch.rand(50, 8), edge_index=torch.randint(0, 50, (2, 200)), y=torch.randint(0, 3, (50,))
)
data.train_mask = torch.arange(50) < 21


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(8, 16), GATConv(16, 3, heads=1)

    def forward(self, data):
        x = F.dropout(self.first(data.x, data.edge_index).relu(), training=self.training)
        return F.log_softmax(self.second(x, data.edge_index), dim=1)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=5e-4)
history = []
for _epoch in range(12):
    model.train()
    optimizer.zero_grad()
    loss = F.nll_loss(model(data)[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    history.append(loss.item())
model.eval()
with torch.no_grad():
    right = model(data).argmax(1)[~data.train_mask] == data.y[~data.train_mask]
history.append(right.float().mean().item())
