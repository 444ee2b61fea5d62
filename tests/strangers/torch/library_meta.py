"""Two inner steps of a differentiable optimizer of `torchopt`, learnt through (MAML)."""

import torch
import torchopt
from torch import nn

torch.manual_seed(22)
model = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1))
outer = torch.optim.Adam(model.parameters(), lr=0.01)
inner = torchopt.MetaSGD(model, lr=0.05)
history = []
for _ in range(5):
    outer.zero_grad()
    start_net, start_optimizer = (
        torchopt.extract_state_dict(model),
        torchopt.extract_state_dict(inner),
    )
    total = 0.0
    for _ in range(3):
        slope = torch.randn(3, 1)
        near, far = torch.randn(8, 3), torch.randn(8, 3)
        for _ in range(2):
            inner.step(nn.functional.mse_loss(model(near), near @ slope))
        total = total + nn.functional.mse_loss(model(far), far @ slope)
        torchopt.recover_state_dict(model, start_net)
        torchopt.recover_state_dict(inner, start_optimizer)
    total.backward()
    outer.step()
    history.append(total.item())
models = {"trained": model}
