"""Words by their frequency: an adaptive softmax."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.AdaptiveLogSoftmaxWithLoss(16, 50, cutoffs=[10, 30], div_value=2.0)

    def forward(self, x, y):
        return self.head(self.body(x), y)


torch.manual_seed(125)
data = TensorDataset(torch.randn(60, 8), torch.randint(0, 50, (60,)))
model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=10, shuffle=True):
        loss = model(x, y).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
