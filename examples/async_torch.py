"""Digits in PyTorch by workers that do not wait for each other. One of them is slow on purpose.

dream run -n 3 examples/async_torch.py                       two workers, one server
dream run -n 3 --strategy parameter_server:staleness=0 examples/async_torch.py      in step
dream run -n 2 --strategy mirrored examples/async_torch.py   the same loop, synchronous
"""

import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

SLOW, SECONDS = 1, 0.02  # the rank that is slow, and by how much a batch

torch.manual_seed(0)
x, y = load_digits(return_X_y=True)
x, x_test, y, y_test = map(torch.tensor, train_test_split(x / 16, y, random_state=0))

with dream.strategy("parameter_server", servers=1) as strategy:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    batches = DataLoader(TensorDataset(x.float(), y), batch_size=64, shuffle=True)
    step = strategy.train_step(model, F.cross_entropy, optimizer)

    begin = time.monotonic()
    for _ in range(20):
        for batch in batches:
            if strategy.topology.rank == SLOW:
                time.sleep(SECONDS)
            step(*batch)
    seconds = time.monotonic() - begin

with torch.no_grad():
    accuracy = (model(x_test.float()).argmax(1) == y_test).float().mean()

if strategy.topology.rank == 0:
    print(f"test accuracy {accuracy:.3f} after {seconds:.1f} s")
    if strategy.name == "parameter_server":
        print(strategy.staleness())
