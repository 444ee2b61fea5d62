"""A training in torch, the last rank's data slow: MILLISECONDS REDUCTION, on the command line."""

import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

import dream

LAST = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1


class Numbers(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if LAST:
            time.sleep(float(sys.argv[1]) / 1000)
        return torch.full([8], float(index))


with dream.strategy("mirrored", reduction=sys.argv[2]):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for _ in range(10):
        for x in DataLoader(Numbers(), batch_size=8):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
print("not reached")
