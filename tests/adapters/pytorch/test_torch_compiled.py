"""A compiled model in the block costs no more compilations than without it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch_compiled

import dream

pytestmark = pytest.mark.slow

RANKS = (2, pytest.param(3, marks=pytest.mark.exhaustive))


@cache
def results(ranks: int) -> list[dict[str, Any]]:
    return dream.launch(torch_compiled.run_all, n=ranks, framework="torch", timeout=500)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_block_has_nothing_compiled_again(ranks: int) -> None:
    for rank in results(ranks):
        (alone, right), (counts, weights) = rank["alone"], rank["together"]
        assert alone["graphs"] > 0
        assert counts["graphs"] <= alone["graphs"]
        assert counts["recompiled"] <= alone["recompiled"]
        assert counts["breaks"] <= alone["breaks"]
        assert np.abs(weights - right).max() < 1e-6


@pytest.mark.parametrize("ranks", RANKS)
def test_what_takes_the_calls_of_parts_is_not_compiled_by_itself(ranks: int) -> None:
    for rank in results(ranks):
        assert rank["parts"] <= rank["parts alone"]
