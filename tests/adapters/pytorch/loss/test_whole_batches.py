"""What is said of batches that no loader of the block hands out: not of a call for shapes."""

from __future__ import annotations

import logging
import logging.handlers

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
    x, y = torch.randn(9, 4), torch.randn(9, 2)
    with dream.strategy("mirrored"):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters())
        model(torch.from_numpy(x.numpy()[:1]))
        batches = [(x[i : i + 4], y[i : i + 4]) for i in (0, 4)]
        for rows, target in batches if by_hand else DataLoader(TensorDataset(x, y), batch_size=4):
            F.mse_loss(model(rows), target).backward()
            optimizer.step()
    return "\n".join(record.getMessage() for record in heard.buffer)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_whole_batch_is_said_where_it_trains(by_hand: bool) -> None:
    for said in dream.launch(trained, by_hand, n=2, framework="torch", timeout=240):
        assert said.count(LINE) == by_hand, said
