"""Stops early: a class of the script's own counts, and the best accuracy is a variable."""

import sys

import fate
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream


class EarlyStopping:
    def __init__(self, patience=2, min_delta=0.0):
        self.patience = patience
        self.min_delta = min_delta
        self.counter = 0
        self.best = float("inf")

    def __call__(self, loss):
        if loss < self.best - self.min_delta:
            self.best = loss
            self.counter = 0
        else:
            self.counter += 1
        return self.counter >= self.patience


torch.manual_seed(0)
x = torch.randn(64, 6)
y = (x[:, 0] * x[:, 1] > 0).long()
vx = torch.randn(40, 6)
vy = (vx[:, 0] * vx[:, 1] > 0).long()
history = []

with dream.strategy(sys.argv[1]):
    train_loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    val_loader = DataLoader(TensorDataset(vx, vy), batch_size=20)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loss_fn = nn.CrossEntropyLoss()
    stopper = EarlyStopping(patience=4)
    best_acc = 0.0
    for epoch in range(40):
        model.train()
        running = 0.0
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
        model.eval()
        val_loss, right = 0.0, 0
        with torch.no_grad():
            for inputs, labels in val_loader:
                output = model(inputs)
                val_loss += loss_fn(output, labels).item()
                right += (output.argmax(1) == labels).sum().item()
        val_loss /= len(val_loader)
        history.append((epoch, running / len(train_loader), val_loss))
        if right / 40 > best_acc:
            best_acc = right / 40
        if stopper(val_loss):
            print("stopped early at", epoch)
            break
    fate.tell(model, epoch=epoch, best=best_acc, history=history)
