"""DDP's buckets in the ring, held against one device."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import ring_cases
import torch

import dream

pytestmark = pytest.mark.slow

RANKS = (2, pytest.param(3, marks=pytest.mark.exhaustive))
ranks_each = pytest.mark.parametrize("ranks", RANKS)


@cache
def _results(ranks: int) -> list[dict[str, Any]] | dream.DreamError:
    try:
        return dream.launch(ring_cases.run, n=ranks, framework="torch", timeout=500)
    except dream.DreamError as error:
        return error


def results(ranks: int) -> list[dict[str, Any]]:
    found = _results(ranks)
    if isinstance(found, dream.DreamError):
        raise found
    return found


@ranks_each
@pytest.mark.parametrize("case", [*ring_cases.BUCKETS, "two models"])
def test_buckets_in_the_ring_are_one_device(case: str, ranks: int) -> None:
    for rank in results(ranks):
        for alone, together in zip(*rank[case], strict=True):
            torch.testing.assert_close(together, alone, rtol=0, atol=2e-7)
        assert rank["identical"] == [rank["identical"][0]] * ranks


@ranks_each
def test_half_precision_buckets(ranks: int) -> None:
    for rank in results(ranks):
        for alone, together in zip(*rank["half"], strict=True):
            torch.testing.assert_close(together, alone, rtol=0, atol=3e-2)


def test_a_core_that_has_ended_is_told_from_one_that_runs() -> None:
    """What a wait goes by when the core forgets a collective in the moment in which it fails."""
    first, other = dream.launch(ring_cases.left, n=2, framework="torch", timeout=500)
    assert first == {"before": True, "after": False}
    assert other is None
