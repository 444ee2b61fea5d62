"""Loops that lay hands on gradients and parameters in shards learn what they learn alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import hands_on_shards as cases
import pytest

import dream

pytestmark = pytest.mark.slow


def both() -> dict[str, Any]:
    return cases.apart() | {"unlike": cases.unlike()}


@cache
def found() -> list[dict[str, Any]]:
    return dream.launch(both, n=2, framework="torch", timeout=300)


@pytest.mark.parametrize("name", [*(act.__name__ for act in cases.HANDS), *cases.OPTIMIZERS])
def test_by_hand_as_on_one_device(name: str) -> None:
    bound = 6e-5 if name == "lbfgs" else 2e-6  # whose curvature enlarges the rounding of sums
    for rank in found():
        assert rank[name] <= bound


def test_what_the_ranks_have_otherwise_is_not_cut() -> None:
    for rank in found():
        assert "other values" in rank["unlike"]
