"""A student and a teacher that follows it, which normalises by its own batches."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(175)
data = TensorDataset(torch.randn(46, 6), torch.randint(0, 3, (46,)))
student = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
teacher = copy.deepcopy(student)
teacher.requires_grad_(False)
model = student
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(data, batch_size=12, shuffle=True, drop_last=True):
        with torch.no_grad():
            goal = teacher(x).softmax(1)
        output = student(x)
        loss = F.cross_entropy(output, y) + F.mse_loss(output.softmax(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(teacher.parameters(), student.parameters()):
                p.lerp_(q, 0.1)
        history.append(loss.item())
