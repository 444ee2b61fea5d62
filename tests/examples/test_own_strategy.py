"""A strategy that is registered from outside is held to the laws."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import dream

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_strategy.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_strategy", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(strategy: str = "averaged") -> list[list[float]]:
    load()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(50, 4), torch.randn(50, 1))
    with dream.strategy(strategy, framework="torch"):
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
        for x, y in DataLoader(data, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    return [parameter.flatten().tolist() for parameter in model.parameters()]


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 60


@pytest.mark.slow
def test_it_equals_one_device() -> None:
    """The last batch has 2 samples, so of 3 ranks one has none."""
    ranks = dream.launch(trained, n=3, framework="torch", timeout=500)
    assert ranks[0] == ranks[1] == ranks[2]
    for own, plain in zip(ranks[0], trained("single"), strict=True):
        assert torch.allclose(torch.tensor(own), torch.tensor(plain), rtol=0, atol=1e-6)


def test_what_it_does_not_take_is_refused() -> None:
    example = load()
    with pytest.raises(dream.DreamError, match="clip_norm"):
        dream.strategy("averaged", framework="torch", clip_norm=1.0)
    with pytest.raises(dream.ConfigurationError, match="belongs to a built-in strategy"):
        example.register("torch", dream.strategies.spec.find("mirrored"), example.Averaged)
