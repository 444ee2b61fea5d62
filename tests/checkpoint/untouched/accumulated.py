"""Gradients of several batches to an update, the last few of an epoch by themselves."""

import sys

import fate
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

torch.manual_seed(0)
data = TensorDataset(torch.randn(56, 6), torch.randn(56, 1))
accumulation_steps = 3


def main():
    with dream.strategy(sys.argv[1]):
        model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        loader = DataLoader(data, batch_size=8, shuffle=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
        updates = 0
        for _ in range(6):
            optimizer.zero_grad()
            for i, (x, y) in enumerate(loader):
                loss = nn.functional.mse_loss(model(x), y) / accumulation_steps
                loss.backward()
                if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
                    updates += 1
            scheduler.step()
        fate.tell(model, updates=updates)


main()
