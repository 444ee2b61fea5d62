"""Loaders: every sample once an epoch, in one order; evaluation sees them all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from contract_case import EVERYWHERE, WITH_DREAM, Env, Figures
from contract_torch_kit import (
    BATCH,
    CASES,
    EPOCHS,
    Indexed,
    Net,
    loader,
    momentum,
    parameters,
    train,
)
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler


def _indices(batches: DataLoader[Any], epochs: int) -> list[list[list[int]]]:
    """This rank's indices: epoch, batch, sample."""
    return [[index.tolist() for index, _, _ in batches] for _ in range(epochs)]


@CASES.add(*EVERYWHERE)
def shuffled_order(env: Env) -> Figures:
    """Two loaders, and one of a seed; iterations without gradients between the epochs."""
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        batches = DataLoader(Indexed(61), batch_size=BATCH, shuffle=True)
        seen: list[list[list[int]]] = []
        for _ in range(EPOCHS):
            seen.append([])
            for index, x, y in batches:
                seen[-1].append(index.tolist())
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            with torch.no_grad():
                for _ in batches:
                    pass
    with env.block(seed=7):
        _trains()
        other = _indices(DataLoader(Indexed(61), batch_size=BATCH, shuffle=True), 1)
    with env.block():
        _trains()
        again = _indices(DataLoader(Indexed(61), batch_size=BATCH, shuffle=True), 1)
    return {"seen": seen, "other": other, "again": again, "parameters": parameters(model)}


@CASES.add(*EVERYWHERE)
def sizes_of_a_rank_without_sample(env: Env) -> Figures:
    with env.block():
        _trains()
        batches = DataLoader(Indexed(49), batch_size=BATCH)
        seen = _indices(batches, 2)
        shapes = [(tuple(x.shape), tuple(y.shape)) for _, x, y in batches]
    return {"seen": seen, "shapes": shapes, "length": len(batches)}


def _trains() -> None:
    """Have the block train by gradients: before that, every rank has whole batches."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])


class _Countdown(torch.utils.data.Sampler[list[int]]):
    """A batch sampler of the user's own, with batches of two sizes."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([5, 4, 3, 2, 1, 0], [9, 8, 7])

    def __len__(self) -> int:
        return 2


@CASES.add(*EVERYWHERE)
def samplers_of_the_user(env: Env) -> Figures:
    """Each rank's would draw otherwise; rank 0's draws count."""
    torch.manual_seed(3 + env.rank)
    data = Indexed(61)
    own = torch.Generator().manual_seed(11 + env.rank)
    subset = SubsetRandomSampler(range(0, 60, 2), generator=own)
    weighted = WeightedRandomSampler([1.0] * 61, 20, generator=own)
    random = RandomSampler(data, replacement=True, num_samples=30, generator=own)
    with env.block():
        _trains()
        seen = {
            "subset": _indices(DataLoader(data, batch_size=8, sampler=subset), 2),
            "weighted": _indices(DataLoader(data, batch_size=8, sampler=weighted), 1),
            "random": _indices(DataLoader(data, batch_size=8, sampler=random), 1),
            "batches": _indices(DataLoader(data, batch_sampler=_Countdown()), 2),
            "generator": _indices(DataLoader(data, batch_size=8, shuffle=True, generator=own), 2),
        }
    return {"seen": seen}


@CASES.add(*EVERYWHERE)
def evaluation_loop_by_hand(env: Env) -> Figures:
    """Every sample on every rank, in order, between two epochs of training."""
    results: list[Any] = []
    with env.block():
        model = Net()
        optimizer = momentum(model.parameters())
        training, test = loader(61), DataLoader(Indexed(23), batch_size=BATCH)
        for mode in (torch.no_grad, torch.inference_mode):
            train(model, optimizer, training, epochs=1)
            model.eval()
            with mode():
                indices, right, total = [], 0, 0.0
                for index, x, y in test:
                    output = model(x)
                    indices += index.tolist()
                    right += int((output.argmax(1) == y).sum())
                    total += float(F.cross_entropy(output, y, reduction="sum"))
            model.train()
            results.append((indices, right, total))
    return {"results": results, "parameters": parameters(model)}


@CASES.add(*WITH_DREAM)
def evaluate(env: Env) -> Figures:
    """strategy.evaluate on a loader of the block, and on batches that no loader dealt."""

    def right(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.argmax(1) == target).double()

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target, reduction="none")

    metrics = {"right": right, "loss": loss}
    seen: list[int] = []

    def counted(_: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append(len(target))
        return torch.ones(len(target))

    plain = list(loader(49))
    with env.block() as strategy:
        model = Net()
        train(model, momentum(model.parameters()), loader(61), epochs=1)
        dealt = strategy.evaluate(model, loader(49), metrics)
        by_hand = strategy.evaluate(model, plain, metrics)
        strategy.evaluate(model, loader(49), {"one": counted})
    return {"dealt": dealt, "by_hand": by_hand, "work": sum(seen), "training": model.training}
