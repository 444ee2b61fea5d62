"""An optimizer of the script's own, which clears gradients as torch once did."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(34)


class Signed(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    def zero_grad(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.detach_()
                    p.grad.zero_()

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.mul_(0.9).add_(p.grad, alpha=0.1)
                p.add_(average / (average.abs() + 0.01), alpha=-group["lr"])


x, y = torch.randn(43, 6), torch.randint(0, 3, (43,))
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
optimizer = Signed(model.parameters(), 0.02)
history = []
for _ in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
models = {"trained": model}
