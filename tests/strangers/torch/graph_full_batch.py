"""A graph convolution over the whole graph, trained on the nodes of a mask."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(21)
NODES = 40
edges = (torch.rand(NODES, NODES) < 0.1).float()
adjacency = ((edges + edges.t()) > 0).float() + torch.eye(NODES)
degree = adjacency.sum(1).rsqrt()
adjacency = degree[:, None] * adjacency * degree[None]
features, labels = torch.randn(NODES, 7), torch.randint(0, 3, (NODES,))
train_mask = torch.zeros(NODES, dtype=torch.bool)
train_mask[torch.randperm(NODES)[:17]] = True


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(7, 8, bias=False), nn.Linear(8, 3)

    def forward(self, x, adjacency):
        x = F.relu(adjacency @ self.one(x))
        x = F.dropout(x, 0.5, training=self.training)
        return F.log_softmax(adjacency @ self.two(x), dim=1)


model = GCN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, weight_decay=5e-4)
history = []
for _epoch in range(10):
    model.train()
    optimizer.zero_grad()
    output = model(features, adjacency)
    loss = F.nll_loss(output[train_mask], labels[train_mask])
    loss.backward()
    optimizer.step()
    model.eval()
    predicted = model(features, adjacency).argmax(1)
    history += [loss.item(), (predicted == labels)[~train_mask].float().mean().item()]
