"""A language model that is never called: its loss is a method, a mean over the words of sentences
of many lengths, with a bias and tied weights of its own."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(92)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8, padding_idx=0)
        self.reader = nn.GRU(8, 8, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(11))

    def loss(self, words):
        read, _ = self.reader(self.table(words[:, :-1]))
        scores = read @ self.table.weight.T + self.bias
        return F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten(), ignore_index=0)


words = torch.randint(1, 11, (37, 9))
words[torch.arange(9) >= torch.randint(2, 10, (37, 1))] = 0
model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
history = []
for _epoch in range(3):
    for (batch,) in DataLoader(TensorDataset(words), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = model.loss(batch)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
