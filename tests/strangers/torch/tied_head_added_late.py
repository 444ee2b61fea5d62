"""A body is trained first; then a head comes that shares its embedding, and joins the optimizer."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(105)
words = torch.randint(0, 13, (44, 7))
positive = (words.sum(1) > 42).float()


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.mix = nn.Linear(8, 8)
        self.out = nn.Linear(8, 1)

    def features(self, x):
        return torch.tanh(self.mix(self.embed(x)))

    def forward(self, x):
        return self.out(self.features(x).mean(1)).squeeze(1)


class WithHead(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.bias = nn.Parameter(torch.zeros(13))

    def forward(self, x):
        return F.linear(self.body.features(x), self.body.embed.weight, self.bias)


body = Body()
optimizer = torch.optim.SGD(body.parameters(), lr=0.2, momentum=0.9)
history = []
for _epoch in range(2):
    for x, y in DataLoader(TensorDataset(words, positive), batch_size=9, shuffle=True):
        loss = F.binary_cross_entropy_with_logits(body(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
model = WithHead(body)
optimizer.add_param_group({"params": [model.bias], "lr": 0.5})
for _epoch in range(2):
    for (x,) in DataLoader(TensorDataset(words), batch_size=9, shuffle=True):
        logits = model(x[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 13), x[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
