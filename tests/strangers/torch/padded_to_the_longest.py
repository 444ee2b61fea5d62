"""Each batch is padded to its longest sample, and the mean over positions counts the padding."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(33)
data = [(torch.randn(int(n), 4), torch.randn(1)) for n in torch.randint(2, 9, (38,))]


def collate(batch):
    series, targets = zip(*batch)
    return nn.utils.rnn.pad_sequence(series, batch_first=True), torch.stack(targets)


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.outer(self.inner(x).tanh().mean(dim=1))


model = Pooled()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=6, shuffle=True, collate_fn=collate):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
