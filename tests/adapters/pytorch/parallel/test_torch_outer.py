"""Replicas that come together in outer steps, held against the same by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import outer_steps
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

CASES = ((3, 0.7, 0.9, 1), (4, 0.5, 0.0, 2))


def run(explicit: bool, **options: Any) -> list[Any]:
    x, y = map(torch.from_numpy, outer_steps.data())
    with dream.strategy("local_sgd", **options) as strategy:
        model = nn.Linear(3, 2)
        with torch.no_grad():
            for own in model.parameters():
                own.fill_(0.1)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=outer_steps.RATE, momentum=outer_steps.MOMENTUM
        )
        loader = DataLoader(TensorDataset(x, y), batch_size=outer_steps.BATCH)
        step = strategy.train_step(model, F.mse_loss, optimizer) if explicit else None
        for _ in range(outer_steps.EPOCHS):
            for a, b in loader:
                if step is not None:
                    step(a, b)
                    continue
                optimizer.zero_grad()
                F.mse_loss(model(a), b).backward()
                optimizer.step()
    return [model.weight.detach().numpy().T, model.bias.detach().numpy()]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("explicit", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_outer_steps_are_those_of_the_paper(case: tuple[Any, ...], explicit: bool) -> None:
    names = ("every", "outer_lr", "outer_momentum", "fragments")
    ranks = dream.launch(
        run, explicit, n=2, framework="torch", timeout=300, **dict(zip(names, case, strict=True))
    )
    for own in ranks:
        for mine, other, expected in zip(own, ranks[0], outer_steps.by_hand(*case), strict=True):
            np.testing.assert_array_equal(mine, other)
            np.testing.assert_allclose(mine, expected, atol=1e-6)


def statistics() -> list[Any]:
    x = torch.from_numpy(outer_steps.data()[0])
    found = []
    for options in ({"every": 2}, {"every": 2, "outer_lr": 0.7}):
        with dream.strategy("local_sgd", **options):
            model = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            for (rows,) in DataLoader(TensorDataset(x), batch_size=outer_steps.BATCH):
                model(rows).sum().backward()
                optimizer.step()
        found.append(model[0].running_mean.numpy())
    return found


def test_what_a_forward_counts_is_the_mean_over_the_replicas_after_a_pass() -> None:
    x, by_rank = outer_steps.data()[0], [np.zeros(3, "float32") for _ in range(outer_steps.RANKS)]
    for first in range(0, len(x), outer_steps.BATCH):
        for rank, own in enumerate(by_rank):
            own += 0.1 * (
                x[first + rank : first + outer_steps.BATCH : outer_steps.RANKS].mean(0) - own
            )
    for rank in dream.launch(statistics, n=2, framework="torch", timeout=300):
        for found in rank:
            np.testing.assert_allclose(found, np.mean(by_rank, axis=0), atol=1e-6)


def sums_and_means() -> list[list[torch.Tensor]]:
    """Under a sum over the rows by the batch's size, under a mean, and under both beside what is of
    parameters alone."""
    x, y = torch.from_numpy(outer_steps.data()[0][:24]), torch.arange(24.0)[:, None] / 24
    by_size = [
        lambda out, b, _: F.mse_loss(out, b, reduction="sum") / 6,
        lambda out, b, _: F.mse_loss(out, b),
        lambda out, b, w: F.mse_loss(out, b, reduction="sum") + w.square().sum() + out.mean(),
        lambda out, b, w: F.mse_loss(out, b) * 6 + w.square().sum() + out.mean(),
    ]
    found = []
    for loss in by_size:
        torch.manual_seed(1)
        with dream.strategy("local_sgd", every=2):
            model = nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
            for a, b in DataLoader(TensorDataset(x, y), batch_size=6):
                optimizer.zero_grad()
                loss(model(a), b, model.weight).backward()
                optimizer.step()
        found.append([each.detach().clone() for each in model.parameters()])
    return found


def test_a_sum_over_a_replicas_rows_stands_for_that_over_the_batch() -> None:
    for rank in dream.launch(sums_and_means, n=2, framework="torch", timeout=300):
        torch.testing.assert_close(rank[0], rank[1], rtol=0, atol=1e-6)
        torch.testing.assert_close(rank[2], rank[3], rtol=0, atol=1e-6)
