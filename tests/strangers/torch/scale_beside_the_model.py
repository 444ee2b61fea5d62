"""A temperature and shifts that no module holds, under class weights and ignored labels, of which
each rank has others; gradients of two batches are added up for some steps."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(91)
x, y = torch.randn(37, 6), torch.randint(0, 4, (37,))
y[torch.rand(37) < 0.3] = -100
network = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
temperature = nn.Parameter(torch.tensor(1.5))
shifts = nn.Parameter(torch.zeros(4))
model = {"network": network, "temperature": temperature, "shifts": shifts}
rare = torch.tensor([1.0, 4.0, 2.0, 0.5])
optimizers = [
    torch.optim.SGD([*network.parameters(), temperature], lr=0.1, momentum=0.5),
    torch.optim.SGD([shifts], lr=0.2),
]
history = []
for epoch in range(3):
    for step, (batch, labels) in enumerate(DataLoader(TensorDataset(x, y), 8, shuffle=True)):
        loss = F.cross_entropy(network(batch) * temperature + shifts, labels, weight=rare)
        (loss + 0.01 * shifts.square().sum()).backward()
        if epoch == 0 or step % 2:
            for each in optimizers:
                each.step()
                each.zero_grad(set_to_none=epoch < 2)
        history.append(temperature.item())
