"""A host's rank of `slow_links.py`: OUT STRATEGY OPTIONS EPOCHS INTERFACE."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

BATCH, RATE, MOMENTUM = 64, 0.05, 0.9


def main() -> None:
    out, name, options, epochs, interface = sys.argv[1:]
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    images, labels = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    sent = Path("/sys/class/net", interface, "statistics", "tx_bytes")
    with dream.strategy(name, **json.loads(options)) as strategy:
        model = nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        loader = DataLoader(TensorDataset(images, labels), BATCH, shuffle=True)
        before, begin = int(sent.read_text()), perf_counter()
        for _ in range(int(epochs)):
            for a, b in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(a), b).backward()
                optimizer.step()
        seconds = perf_counter() - begin
        travelled = int(sent.read_text()) - before
        rank = strategy.topology.rank
    with torch.no_grad():
        logits = model(images)
        loss, right = F.cross_entropy(logits, labels), (logits.argmax(1) == labels).float().mean()
    if rank == 0:
        figures = {"seconds": seconds, "MB": travelled / 1e6, "loss": float(loss),
                   "right": float(right)}  # fmt: skip
        Path(out).write_text(json.dumps(figures))


main()
