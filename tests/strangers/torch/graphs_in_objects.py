"""Graphs of different numbers of nodes, joined by a collate into an object of the script's own."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


@dataclass
class Graphs:
    x: torch.Tensor
    edges: torch.Tensor
    of: torch.Tensor
    y: torch.Tensor


torch.manual_seed(13)
graphs = []
for _ in range(43):
    nodes = int(torch.randint(4, 10, ()))
    x = torch.randn(nodes, 5)
    graphs.append((x, torch.randint(0, nodes, (2, 3 * nodes)), (x.mean() > 0).long()))


def join(found):
    sizes = torch.tensor([len(x) for x, _, _ in found])
    starts = sizes.cumsum(0) - sizes
    edges = [edge + start for (_, edge, _), start in zip(found, starts, strict=True)]
    of = torch.arange(len(found)).repeat_interleave(sizes)
    x, y = torch.cat([x for x, _, _ in found]), torch.stack([y for _, _, y in found])
    return Graphs(x, torch.cat(edges, 1), of, y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(5, 9), nn.Linear(9, 9), nn.Linear(9, 2)

    def forward(self, x, edges, of, count):
        for layer in (self.first, self.second):
            h = layer(x)
            x = h.index_add(0, edges[1], h[edges[0]]).tanh()
        pooled = x.new_zeros(count, 9).index_add(0, of, x)
        return self.out(F.dropout(pooled, 0.3, self.training))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
history = []
for _epoch in range(2):
    for data in DataLoader(graphs, batch_size=8, shuffle=True, collate_fn=join):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edges, data.of, len(data.y)), data.y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
