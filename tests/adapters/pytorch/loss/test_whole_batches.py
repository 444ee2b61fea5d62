"""What is said of batches that no loader of the block hands out: not of a call for shapes."""

from __future__ import annotations

import logging
import logging.handlers

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
