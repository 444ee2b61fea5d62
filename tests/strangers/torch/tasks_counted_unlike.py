"""Three tasks in one loss: a mean over labelled samples, one over words, and a sum by the batch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(102)
N, LENGTH = 43, 5
x = torch.randn(N, LENGTH, 6)
tags = torch.randint(0, 3, (N, LENGTH))
tags[torch.rand(N, LENGTH) < 0.3] = -1  # no word
label = torch.randint(0, 4, (N,))
label[torch.rand(N) < 0.4] = -1  # not labelled
value = torch.randn(N)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(6, 12, batch_first=True)
        self.tag, self.classify, self.regress = nn.Linear(12, 3), nn.Linear(12, 4), nn.Linear(12, 1)

    def forward(self, x):
        states, last = self.gru(x)
        return self.tag(states), self.classify(last[0]), self.regress(last[0]).squeeze(-1)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
history = []
for _epoch in range(3):
    for x_, tags_, label_, value_ in DataLoader(
        TensorDataset(x, tags, label, value), batch_size=12, shuffle=True
    ):
        words, classes, number = model(x_)
        loss = F.cross_entropy(words.transpose(1, 2), tags_, ignore_index=-1)
        loss = loss + 0.5 * F.cross_entropy(classes, label_, ignore_index=-1)
        loss = loss + 0.1 * F.l1_loss(number, value_, reduction="sum") / x_.size(0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
