"""A trained model is compiled by `torch.jit`, as a script and as a trace, saved, and trained on."""

import io

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(31)


@torch.jit.script
def squashed(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x, -1.0, 1.0) + torch.maximum(x, 0.1 * x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 12), nn.BatchNorm1d(12)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(12, 3)

    def forward(self, x):
        return self.last(self.drop(squashed(self.norm(self.first(x)))))


x, y = torch.randn(45, 6), torch.randint(0, 3, (45,))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _ in range(3):
    model.train()
    for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    model.eval()
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    with torch.no_grad():
        read = torch.jit.load(file)
        history.append(float(read(x).sum()))
        history.append(float(torch.jit.trace(model, x[:4])(x).sum()))
models = {"trained": model}
