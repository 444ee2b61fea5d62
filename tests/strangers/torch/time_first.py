"""A recurrent net that wants time first: the batch is turned, and padding is masked."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(124)
lengths = torch.randint(2, 9, (43,))
data = TensorDataset(torch.randint(0, 7, (43, 8)), torch.randint(0, 4, (43, 8)), lengths)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.drop = nn.Embedding(7, 6), nn.Dropout(0.2)
        self.lstm, self.out = nn.LSTM(6, 9, bidirectional=True), nn.Linear(18, 4)

    def forward(self, x):  # (time, batch)
        return self.out(self.drop(self.lstm(self.drop(self.embed(x)))[0]))


model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y, n in DataLoader(data, batch_size=8, shuffle=True):
        x, y = x.t().contiguous(), y.t().contiguous()
        mask = torch.arange(8)[:, None] < n[None]
        logits = model(x)
        losses = F.cross_entropy(logits.view(-1, 4), y.view(-1), reduction="none").view_as(mask)
        loss = (losses * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
        optimizer.step()
        history.append(loss.item())
