"""A student learns from a teacher's soft answers and from the labels."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(25)
data = TensorDataset(torch.randn(51, 6), torch.randint(0, 4, (51,)))
teacher = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 4)).eval()
for parameter in teacher.parameters():
    parameter.requires_grad = False
model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
T, alpha, history = 3.0, 0.7, []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        with torch.no_grad():
            soft = F.softmax(teacher(x) / T, dim=1)
        logits = model(x)
        distill = nn.KLDivLoss(reduction="batchmean")(F.log_softmax(logits / T, dim=1), soft)
        loss = alpha * T * T * distill + (1 - alpha) * F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
