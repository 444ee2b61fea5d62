"""Generators that a script has made are found where it keeps them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

from dream.adapters.pytorch.randomness.own_generators import (
    digests_of,
    held_by,
    of_the_loop,
    take_back,
)
from dream.adapters.pytorch.randomness.own_generators import states_of as states

around = np.random.RandomState(1)


class Noisy(Dataset[Any]):
    def __init__(self, **own: Any) -> None:
        vars(self).update(own)


class Around(Dataset[Any]):
    def __getitem__(self, index: int) -> float:
        return float(around.uniform()) + index


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.draw = np.random.default_rng(2)


def _kinds() -> list[Any]:
    return [
        random.Random(0), np.random.default_rng(0), np.random.RandomState(0),
        torch.Generator().manual_seed(0),
    ]  # fmt: skip


@pytest.mark.parametrize("own", _kinds(), ids=lambda own: type(own).__name__)
def test_a_datasets_own_generator_is_found_and_taken_back(own: Any) -> None:
    def transform(x: float) -> float:
        return x + own.x if hasattr(own, "x") else x

    for data in (Noisy(own=own), Subset(Noisy(inner=[{"deep": own}]), [0]), Noisy(by=transform)):
        assert held_by(data) == [own]
    before, kept = digests_of([own]), states([own])
    draw = own.random if hasattr(own, "random") else lambda: torch.rand(1, generator=own)
    draw()
    assert digests_of([own]) != before
    take_back([own], kept)
    assert digests_of([own]) == before


def test_what_a_dataset_names_of_the_script_is_found() -> None:
    assert held_by(Around()) == [around]
    assert held_by(Noisy(numbers=np.zeros(3), many=list(range(100)))) == []


def test_a_models_generator_is_the_loops() -> None:
    model = nn.Sequential(Model())
    assert any(each is model[0].draw for each in of_the_loop())
