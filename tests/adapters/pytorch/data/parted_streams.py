"""Trainings over a stream whose parts are read by one rank each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import dream

FILES, BATCH = 21, 16


class Files(IterableDataset[Any]):
    """Files of several lengths, each worker's shuffled in a buffer and jittered as it is read."""

    def __init__(self, files: int = FILES) -> None:
        self.files = files

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        number, of = (0, 1) if info is None else (info.id, info.num_workers)
        held: list[Any] = []
        for file in range(number, self.files, of):
            generator = torch.Generator().manual_seed(file)
            for row in range(9 + file % 4):
                x = torch.randn(6, generator=generator)
                READ[0] += 1
                held.append((x, torch.tensor(file % 3), file * 100 + row))
                if len(held) > 4:
                    yield self._jittered(held.pop(random.randrange(5)))
        yield from map(self._jittered, held)

    def _jittered(self, sample: Any) -> Any:
        x, y, name = sample
        return x + 0.01 * torch.randn(6), y, name


class Undivided(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter((torch.full((6,), float(row)), torch.tensor(row % 3), row) for row in range(40))


class ByRank(Files):
    def __iter__(self) -> Iterator[Any]:
        rank = dream.current().topology.rank
        return (each for each in super().__iter__() if each[2] % 2 == rank)


READ = [0]
"""Samples that this process has read, of all its parts."""
LOOPS: dict[str, dict[str, Any]] = {
    "itself": {},
    "workers": {"workers": 2},
    "accumulated": {"accumulate": 2},
}


def all_loops() -> dict[str, dict[str, Any]]:
    """By loop: what `train` gives."""
    return {name: train(**options) for name, options in LOOPS.items()}


def made(*, norm: bool, dropout: float) -> nn.Module:
    """A model, from torch's generator."""
    return nn.Sequential(
        nn.Linear(6, 8),
        nn.BatchNorm1d(8) if norm else nn.Identity(),
        nn.Dropout(dropout),
        nn.Linear(8, 3),
    )


def train_plainly(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """The weights that torch alone comes to over these batches."""
    torch.manual_seed(3)
    model = made(norm=True, dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [*model.parameters()]


def train(
    workers: int = 0, accumulate: int = 1, go_on: dict[str, Any] | None = None, stop: int = 3
) -> dict[str, Any]:
    """Two epochs. weights; samples: this rank's, by epoch; batches: what it was given; read: how
    many samples in the first epoch; kept: where it stood after some batches of the second."""
    torch.manual_seed(3)
    READ[0] = 0
    found: dict[str, Any] = {"samples": [], "batches": [], "read": 0}
    with dream.strategy("mirrored", input="sharded", accumulate=accumulate):
        model = made(norm=accumulate == 1, dropout=0.0 if workers else 0.3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader: Any = DataLoader(Files(), batch_size=BATCH, num_workers=workers)
        if go_on is not None:
            model.load_state_dict(go_on["model"])
            torch.set_rng_state(go_on["generator"])
            loader.load_state_dict(go_on["data"])
        for epoch in range(2 if go_on is None else 1):
            found["samples"].append([])
            for step, (x, y, names) in enumerate(loader):
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                found["samples"][-1] += names.tolist()
                found["batches"].append((x, y))
                if epoch == 1 and step == stop:
                    found["kept"] = {
                        "model": {k: v.clone() for k, v in model.state_dict().items()},
                        "generator": torch.get_rng_state(),
                        "data": loader.state_dict(),
                    }
            found["read"] = found["read"] or READ[0]
        model.eval()
        found["evaluated"] = sum(len(x) for x, _, _ in loader)
    found["weights"] = [p.detach().clone() for p in model.parameters()]
    return found


def refused() -> list[str]:
    """What is said of streams that cannot be read in parts."""
    said = []
    with dream.strategy("mirrored", input="sharded"):
        model = nn.Linear(6, 3)
        torch.optim.SGD(model.parameters())
        loaders = (
            lambda: DataLoader(Undivided(), batch_size=8),
            lambda: DataLoader(ByRank(), batch_size=8),
            lambda: DataLoader(Files(1), batch_size=8),
            lambda: DataLoader(Files(), batch_size=None),
        )
        for make in loaders:
            try:
                for x, _, _ in make():
                    model(x).sum().backward()
            except dream.DreamError as error:
                said.append(str(error))
            else:
                said.append("nothing")
    return said
