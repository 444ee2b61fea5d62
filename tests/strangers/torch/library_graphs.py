"""Graphs of `torch_geometric` in batches, each of other numbers of nodes; one label a graph."""

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

torch.manual_seed(13)
graphs = []
for _ in range(45):
    nodes = int(torch.randint(4, 10, ()))
    edges = torch.randint(0, nodes, (2, 3 * nodes))
    x = torch.randn(nodes, 5)
    graphs.append(Data(x=x, edge_index=edges, y=(x.mean() > 0).long().reshape(1)))
train = DataLoader(graphs[:35], batch_size=8, shuffle=True)
test = DataLoader(graphs[35:], batch_size=8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(5, 16), GCNConv(16, 16)
        self.out = nn.Linear(16, 2)

    def forward(self, x, edges, batch):
        x = self.first(x, edges).relu()
        x = self.second(x, edges).relu()
        x = F.dropout(global_mean_pool(x, batch), 0.3, self.training)
        return self.out(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    model.train()
    for data in train:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index, data.batch), data.y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    model.eval()
    right = 0
    with torch.no_grad():
        for data in test:
            out = model(data.x, data.edge_index, data.batch)
            right += int((out.argmax(1) == data.y).sum())
    history.append(right / 10)
