"""A loss without a graph: one of nothing on a rank whose rows add nothing; an error on all."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream

pytestmark = pytest.mark.slow


def trained() -> list[str]:
    said = []
    for known in (0, 1):
        torch.manual_seed(1)
        with dream.strategy("mirrored"):
            models = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
            torch.optim.SGD(models.parameters())
            data = TensorDataset(torch.randn(9, 4), torch.randn(9, 2))
            try:
                for x, y in DataLoader(data, batch_size=4):
                    if known:  # the ranks have agreed on a loss before
                        F.mse_loss(models[0](x), y).backward()
                    F.mse_loss(models[1](x).detach(), y).backward()
            except dream.ConfigurationError as error:
                said.append(str(error))
    return said


def test_a_loss_that_has_lost_its_graph_is_refused() -> None:
    for said in dream.launch(trained, n=2, framework="torch", timeout=240):
        assert len(said) == 2
        assert all("has no graph on any rank" in each for each in said)
