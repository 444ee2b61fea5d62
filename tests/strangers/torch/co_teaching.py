"""Two nets; each learns the samples that the other finds easiest."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(128)
data = TensorDataset(torch.randn(43, 6), torch.randint(0, 3, (43,)))
models = [nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)) for _ in range(2)]
optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        outs = [m(x) for m in models]
        with torch.no_grad():
            orders = [F.cross_entropy(o, y, reduction="none").argsort() for o in outs]
        keep = int(0.75 * len(x))
        for mine, (out, optimizer) in enumerate(zip(outs, optimizers)):
            easy = orders[1 - mine][:keep]
            loss = F.cross_entropy(out[easy], y[easy])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
