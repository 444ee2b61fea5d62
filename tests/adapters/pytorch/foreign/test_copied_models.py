"""Copies of models and unpickled ones train as models that were made in the block."""

from __future__ import annotations

import copied_models as cases
import pytest

import dream

pytestmark = pytest.mark.slow
OFTEN = ("mirrored", "sharded")


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "block",
    [b if b in OFTEN else pytest.param(b, marks=pytest.mark.exhaustive) for b in cases.BLOCKS],
)
def test_a_copy_trains_as_on_one_device(block: str, ranks: int) -> None:
    """BatchNorm and dropout were each rank's own (5e-1), or a copy in shards was refused."""
    for rank in dream.launch(cases.gaps, block, n=ranks, framework="torch", timeout=300):
        assert max(rank.values()) <= 1e-6, rank


def test_a_copy_without_an_optimizer_is_left_alone() -> None:
    first, second = dream.launch(cases.alone, n=2, framework="torch", timeout=200)
    assert first != second
