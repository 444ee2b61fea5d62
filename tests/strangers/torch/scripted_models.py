"""Models that `torch.jit` compiles before they are trained, whole and in part."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(32)
x, y = torch.randn(43, 6), torch.randint(0, 3, (43,))


def layers(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 12), nn.LayerNorm(12), nn.Tanh(), nn.Linear(12, outputs))


models = {
    "script": torch.jit.script(layers(6, 3)),
    "trace": torch.jit.trace(layers(6, 3), x[:4]),
    "part": nn.Sequential(torch.jit.script(layers(6, 8)), nn.ReLU(), nn.Linear(8, 3)),
}
history = []
for model in models.values():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
