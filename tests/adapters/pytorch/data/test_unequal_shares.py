"""Replicas with unequal shares of a batch learn what one device does."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import unequal_shares as unequal

import dream

pytestmark = pytest.mark.slow
SHARES = [[3, 1], pytest.param([1, 4, 2], marks=pytest.mark.exhaustive)]


@cache
def found(*shares: int) -> list[dict[str, Any]]:
    return dream.launch(unequal.all_loops, [*shares], n=len(shares), framework="torch", timeout=500)


@pytest.mark.parametrize("name", unequal.LOOPS)
@pytest.mark.parametrize("shares", SHARES)
def test_shares_of_ones_own_change_no_number(shares: list[int], name: str) -> None:
    ranks = [rank[name] for rank in found(*shares)]
    for weights, losses, _ in ranks:
        assert weights < 1e-6
        assert losses < (1e-5 if name == "sum" else 1e-6)
    first = [rank[2][0] for rank in ranks]
    assert first[0] != first[1]
    if name not in ("accumulated",):
        assert sum(first) == unequal.BATCH


def test_shares_follow_the_speeds_of_ranks() -> None:
    """Rank 1 takes four times as long for a sample, and is given fewer."""
    ranks = dream.launch(unequal.of_speeds, 4.0, 1, n=2, framework="torch", timeout=300)
    assert [rank[0] < 1e-6 for rank in ranks] == [True, True]
    (_, ones), (_, others) = ranks
    assert (ones[0], others[0]) == (unequal.BATCH // 2, unequal.BATCH // 2)
    assert others[-1] < ones[-1]
    assert {a + b for a, b in zip(ones, others, strict=True)} == {unequal.BATCH}


def test_batches_that_are_used_together_are_divided_alike() -> None:
    """A loader that reads ahead has drawn batches before the shares change, and another has not."""
    ranks = dream.launch(unequal.of_speeds, 4.0, 2, n=2, framework="torch", timeout=300)
    for apart, counts in ranks:
        assert apart < 1e-6
        assert {*counts} == {unequal.BATCH // 2}


@pytest.mark.parametrize(
    ("shares", "batch_size", "words"),
    [
        ([3], 8, "for 2 replicas"),
        ([3, 0], 8, "whole number of at least 1"),
        ([1, 30], 8, "leave none for rank"),
    ],
)
def test_shares_that_cannot_be(shares: list[int], batch_size: int, words: str) -> None:
    said = dream.launch(unequal.refused, shares, batch_size, n=2, framework="torch", timeout=300)
    assert all(words in each for each in said)
