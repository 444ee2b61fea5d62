"""A rank of `sharded_input.py`: OUT INPUT SAMPLES."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import dream

FILES, WIDTH = 64, 64


class Decoded(IterableDataset[torch.Tensor]):
    """Samples in files, divided by worker; to decode one takes sorting numbers."""

    def __init__(self, samples: int) -> None:
        self._rows = samples // FILES

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        mine = range(FILES) if info is None else range(info.id, FILES, info.num_workers)
        for file in mine:
            generator = np.random.default_rng(file)
            for _ in range(self._rows):
                sample = np.sort(generator.random(32_000, np.float32))[:: 32_000 // WIDTH]
                yield torch.from_numpy(sample[:WIDTH].copy())


def main() -> None:
    out, how, samples = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.manual_seed(0)
    with dream.strategy("mirrored", input=how) as strategy:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        loader = DataLoader(Decoded(samples), batch_size=64)
        begin = 0.0
        for _ in range(2):
            begin = perf_counter()
            for x in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        seconds = perf_counter() - begin
        if strategy.topology.rank == 0:
            Path(out).write_text(json.dumps(seconds))


main()
