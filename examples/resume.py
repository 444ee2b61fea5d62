"""A training that is left in mid-epoch and gone on with by another number of replicas. The weights
at the end are those of a training that was never left.

python examples/resume.py                            in one go: prints a sum of the weights
dream run -n 2 examples/resume.py kept.pt 40         leaves after 40 updates
dream run -n 3 examples/resume.py kept.pt            goes on, and prints the same sum
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

place = Path(sys.argv[1]) if len(sys.argv) > 1 else None
stop = int(sys.argv[2]) if len(sys.argv) > 2 else 0
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
torch.manual_seed(0)

with dream.strategy() as strategy:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = DataLoader(digits, batch_size=64, shuffle=True)
    if place is not None and place.exists() and not stop:
        kept = torch.load(place)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        batches.load_state_dict(kept["data"])

    updates = 0
    for epoch in range(batches.state_dict()["epoch"], 3):
        for x, y in strategy.progress(batches, name=f"epoch {epoch}"):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            updates += 1
            if updates == stop:
                kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**kept, "data": batches.state_dict()}, place)
                sys.exit()

if strategy.topology.rank == 0:
    print(f"weights {sum(p.abs().sum().item() for p in model.parameters()):.3f}")
