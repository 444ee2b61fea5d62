"""The best model so far is saved; training is saved too, and goes on from the file."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(60)
data = TensorDataset(torch.randn(45, 5), torch.randn(45, 1))
valid_x, valid_y = torch.randn(20, 5), torch.randn(20, 1)


def make():
    model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)


def epoch(model, optimizer, scheduler):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    scheduler.step()
    with torch.no_grad():
        return nn.functional.mse_loss(model(valid_x), valid_y).item()


model, optimizer, scheduler = make()
history, best = [], float("inf")
for _ in range(2):
    history.append(epoch(model, optimizer, scheduler))
    if history[-1] < best:
        best = history[-1]
        torch.save(model.state_dict(), "best.pt")
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
torch.save({name: part.state_dict() for name, part in parts.items()}, "checkpoint.pt")

model, optimizer, scheduler = make()
saved = torch.load("checkpoint.pt")
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
scheduler.load_state_dict(saved["scheduler"])
history += [epoch(model, optimizer, scheduler) for _ in range(2)]
kept = make()[0]
kept.load_state_dict(torch.load("best.pt"))
models = [model, kept]
