"""A script for `dream run`, in which something goes wrong once.

Usage: server_fault_torch.py MODE FOLDER, MODE one of kill, stop, server.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from server_job_marks import Faults
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

MODE, FOLDER = sys.argv[1], Path(sys.argv[2])
RANK = int(os.environ["RANK"])
FAULTS = Faults(MODE, FOLDER, RANK)


def note(what: str, epoch: int, samples: torch.Tensor) -> None:
    with (FOLDER / f"{what}{RANK}-{epoch}").open("a") as file:
        file.write(" ".join(map(str, samples.tolist())) + "\n")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(200, 8)
    train = TensorDataset(torch.arange(200), x, x.abs().argmax(1))
    every = 5 if MODE == "server" else None
    with dream.strategy(
        "parameter_server", workers=2, servers=1, staleness=8, snapshot_every=every
    ) as strategy:
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = DataLoader(train, batch_size=5, shuffle=True)
        for epoch in range(2):
            for index, inputs, targets in batches:
                FAULTS.begin_batch()
                note("began", epoch, index)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                note("done", epoch, index)
    if RANK == 0:
        print(strategy.staleness())


main()
