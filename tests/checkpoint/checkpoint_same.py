"""Trainings in torch that are saved in the midst of a pass, and go on in the same cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

SAVED, STEPS = 5, 8
"""Of 4 batches to a pass; a rank's last one is smaller."""
Cell = tuple[str, dict[str, Any]]


def gone_on(folder: str, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """By cell: whether the end is that of the training that was not stopped, to the bit, and what
    was told."""
    return [_both(f"{folder}/{number}", *cell) for number, cell in enumerate(cells)]


def _both(folder: str, word: str, options: dict[str, Any]) -> dict[str, Any]:
    whole, then = _train(word, options, folder, 0), _train(word, options, folder, SAVED)
    assert whole.keys() == then.keys()
    apart = [name for name in whole if not torch.equal(whole[name], then[name])]
    return {"other": apart, "arrays": len(whole), "files": _files(folder)}


def _files(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).glob("step-*/*"))


def _train(word: str, options: dict[str, Any], folder: str, first: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    x, y = torch.randn(61, 8), torch.randint(0, 3, (61,))
    model: nn.Module = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.0 if word == "parameter_server" else 0.3),
        nn.Linear(16, 7), nn.Tanh(), nn.Linear(7, 3),
    )  # fmt: skip
    if first:
        for value in model.parameters():
            nn.init.zeros_(value)
    with dream.strategy(word, **options) as strategy:
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
        batches: Any = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
        model, optimizer, batches = strategy.prepare(model, optimizer, batches)
        step = strategy.train_step(model, nn.functional.cross_entropy, optimizer)
        parts = {"model": model, "optimizer": optimizer, "data": batches}
        if first:
            at = strategy.load(folder, **parts)
            assert at is not None
            assert at.step == first
        done = first
        while done < STEPS:
            for batch in batches:
                step(*batch)
                done += 1
                if done == SAVED and not first:
                    strategy.save(folder, step=done, **parts)
                if done == STEPS:
                    break
        return {name: torch.from_numpy(x) for name, x in strategy.full_state(model).items()}


def one(folder: str, word: str, options: dict[str, Any], first: int) -> dict[str, Any]:
    """A process trains once where servers end with their block."""
    return {name: value.numpy() for name, value in _train(word, options, folder, first).items()}


def refused(folder: str, options: dict[str, Any]) -> list[str]:
    """What is said of a checkpoint of workers that do not wait for one another, and of one that is
    loaded too late."""
    said = []
    model = nn.Linear(8, 3)
    with dream.strategy("parameter_server", **options) as strategy:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = DataLoader(TensorDataset(torch.zeros(8, 8), torch.zeros(8).long()), batch_size=4)
        step = strategy.train_step(model, nn.functional.cross_entropy, optimizer)
        for batch in batches:
            step(*batch)
        for act in (
            lambda: strategy.save(folder, step=2, model=model, optimizer=optimizer).wait(),
            lambda: strategy.load(folder, model=model, optimizer=optimizer),
        ):
            try:
                act()
            except dream.Unsupported as error:
                said.append(str(error))
        before = [value.clone() for value in model.parameters()]
        strategy.full_state(model)
        assert all(map(torch.equal, before, model.parameters()))
    return said


def another(folder: str) -> list[str]:
    """What is said of replicas that came together in another way, before a weight is written."""
    _train("local_sgd", {"every": 3}, folder, 0)
    said = []
    for options in ({"every": 2}, {"every": 3, "outer_lr": 0.7}):
        with dream.strategy("local_sgd", **options) as strategy:
            model = nn.Sequential(
                nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 7), nn.Tanh(),
                nn.Linear(7, 3),
            )  # fmt: skip
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            before = [value.clone() for value in model.parameters()]
            try:
                strategy.load(folder, model=model, optimizer=optimizer)
            except dream.ConfigurationError as error:
                said.append(str(error))
            assert all(map(torch.equal, before, model.parameters()))
    return said


def come_together(folder: str, options: dict[str, Any]) -> float:
    """How far what others read of replicas that are apart is from what these come to."""
    _train("local_sgd", options, folder, 0)
    torch.manual_seed(5)
    read = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 7), nn.Tanh(), nn.Linear(7, 3)
    )
    with dream.strategy("mirrored") as strategy:
        optimizer = torch.optim.AdamW(read.parameters(), lr=0.01)
        strategy.load(folder, model=read, optimizer=optimizer)
        mean = strategy.full_state(read)
    with dream.strategy("local_sgd", **options) as strategy:
        optimizer = torch.optim.AdamW(read.parameters(), lr=0.01)
        strategy.load(folder, model=read, optimizer=optimizer)
        own = {name: value.clone() for name, value in read.state_dict().items()}
        settled = strategy.full_state(read)
        moved = max(float((own[n] - torch.from_numpy(x)).abs().max()) for n, x in settled.items())
    assert moved > 1e-4, "the replicas were alike"
    return max(float(abs(mean[name] - settled[name]).max()) for name in mean)
