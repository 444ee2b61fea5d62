"""Each batch goes through the net twice, with other dropout, and both answers should agree."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(67)
data = TensorDataset(torch.randn(43, 6), torch.randint(0, 3, (43,)))
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        one, two = model(x), model(x)
        entropy = 0.5 * (F.cross_entropy(one, y) + F.cross_entropy(two, y))
        p, q = F.log_softmax(one, -1), F.log_softmax(two, -1)
        forth = F.kl_div(p, q, reduction="batchmean", log_target=True)
        back = F.kl_div(q, p, reduction="batchmean", log_target=True)
        loss = entropy + 0.5 * (forth + back)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
