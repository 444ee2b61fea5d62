"""Trains in PyTorch until something ends it. On the command line: FOLDER NAME OPTIONS-AS-JSON."""

from __future__ import annotations

import json
import os
import sys

import torch
from chaos_marks import Marks
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream


def main() -> None:
    folder, name, options = sys.argv[1:]
    torch.set_num_threads(1)
    marks = Marks(folder, int(os.environ["RANK"]))
    torch.manual_seed(0)
    x = torch.randn(64, 16)
    data = DataLoader(TensorDataset(x, x.argmax(1)), batch_size=16)
    with dream.strategy(name, **json.loads(options)) as strategy:
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 16))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer, batches = strategy.prepare(model, optimizer, data)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        while True:
            for batch in batches:
                step(*batch)
                marks.step()


main()
