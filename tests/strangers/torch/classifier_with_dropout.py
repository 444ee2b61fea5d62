"""Digits-like images, a small convolutional net with dropout, evaluation after each epoch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
images, labels = torch.randn(90, 1, 8, 8), torch.randint(0, 10, (90,))
train = TensorDataset(images[:70], labels[:70])
test = TensorDataset(images[70:], labels[70:])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.dropout1 = nn.Dropout2d(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.hidden = nn.Linear(54, 16)
        self.out = nn.Linear(16, 10)

    def forward(self, x):
        x = self.dropout1(F.max_pool2d(F.relu(self.conv(x)), 2))
        x = self.dropout2(F.relu(self.hidden(x.flatten(1))))
        return F.log_softmax(self.out(x), dim=1)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
train_loader = DataLoader(train, batch_size=16, shuffle=True)
test_loader = DataLoader(test, batch_size=7)
history = []
for _epoch in range(3):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        F.nll_loss(model(x), y).backward()
        optimizer.step()
    model.eval()
    loss, right = 0.0, 0
    with torch.no_grad():
        for x, y in test_loader:
            output = model(x)
            loss += F.nll_loss(output, y, reduction="sum").item()
            right += output.argmax(1).eq(y).sum().item()
    history += [loss / len(test), right / len(test)]
