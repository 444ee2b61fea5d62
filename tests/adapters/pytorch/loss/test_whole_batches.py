"""What is said of batches that no loader of the block hands out: not of a call for shapes; and what
where each rank has drawn its own."""

from __future__ import annotations

import logging
import logging.handlers
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

pytestmark = pytest.mark.slow
LINE = "a batch that comes from no loader of the block"


def trained(by_hand: bool) -> str:
    """What is said of a model that is called once before a loop. by_hand: which slices batches."""
    heard = logging.handlers.BufferingHandler(1000)
    logging.getLogger("dream").addHandler(heard)
    torch.manual_seed(1)
    draw = np.random.default_rng(1)
    x, y = (draw.normal(size=(9, n)).astype("float32") for n in (4, 2))
    with dream.strategy("mirrored"):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters())
        model(torch.from_numpy(x[:1]))
        data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        batches = [[torch.from_numpy(a[i : i + 4]) for a in (x, y)] for i in (0, 4)]
        for rows, target in batches if by_hand else DataLoader(data, batch_size=4):
            F.mse_loss(model(rows), target).backward()
            optimizer.step()
        nn.Linear(4, 2)(torch.from_numpy(x[:1]))  # as one that is filled from a file next
    return "\n".join(record.getMessage() for record in heard.buffer)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_whole_batch_is_said_where_it_trains(by_hand: bool) -> None:
    said, *_ = dream.launch(trained, by_hand, n=2, framework="torch", timeout=240)
    assert said.count(LINE) == by_hand, said


def drawn(seed: int | None) -> str:
    """What is said of a loop whose batches Python's and NumPy's generators order. Without a seed
    both are the operating system's on each rank."""
    heard = logging.handlers.BufferingHandler(1000)
    logging.getLogger("dream").addHandler(heard)
    system = random.SystemRandom() if seed is None else random.Random(seed)
    orders = np.random.default_rng(seed)
    x, y = torch.arange(16.0).reshape(8, 2), torch.arange(8.0).reshape(8, 1)
    with dream.strategy("mirrored"):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(3):
            order = orders.permutation(system.sample(range(8), 8))
            for rows in np.split(order, 2):
                optimizer.zero_grad()
                F.mse_loss(model(x[rows]), y[rows]).backward()
                optimizer.step()
        loader = DataLoader(TensorDataset(x, y), batch_size=4)
        for (
            rows,
            target,
        ) in loader:  # whose watch of the loop's generators passes by a stateless one
            F.mse_loss(model(rows), target).backward()
    return "\n".join(record.getMessage() for record in heard.buffer)


@pytest.mark.parametrize("seed", [None, 1])
def test_batches_that_each_rank_draws_for_itself_are_said_once(seed: int | None) -> None:
    said, *_ = dream.launch(drawn, seed, n=2, framework="torch", timeout=240)
    assert said.count(f"{LINE} is another on each rank") == (seed is None), said
    assert said.count("is whole on every rank") == (seed == 1), said
