"""A progress bar around the loader, a rate by the step, and a count of steps that goes on."""

import sys

import fate
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

try:
    from tqdm import tqdm
except ImportError:
    from rich.progress import track as tqdm

torch.manual_seed(0)
data = TensorDataset(torch.randn(50, 6), torch.randn(50, 1))
global_step = 0
losses = []


def train_one_epoch(epoch):
    global global_step
    bar = tqdm(loader)
    for step, (x, y) in enumerate(bar):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        global_step += 1
        if global_step % 10 == 0:
            losses.append((epoch, step, round(loss.item(), 4)))


with dream.strategy(sys.argv[1]):
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6 * len(loader))
    for epoch in range(6):
        train_one_epoch(epoch)
    fate.tell(model, steps=global_step, losses=[list(x) for x in losses])
