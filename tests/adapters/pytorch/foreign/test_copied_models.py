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


def test_a_model_is_copied_with_its_optimizer() -> None:
    """BatchNorm was each rank's own (1e-1)."""
    for gap in dream.launch(cases.copied_together, "mirrored", n=2, framework="torch", timeout=200):
        assert gap <= 1e-6


def test_in_shards_an_optimizer_that_was_copied_is_refused() -> None:
    """It trained nothing, and a line said so (4e-1)."""
    for said in dream.launch(cases.copied_together, "sharded", n=2, framework="torch", timeout=200):
        assert said.startswith("An optimizer that has already stepped cannot take over the shards")


def test_a_copy_without_an_optimizer_is_left_alone() -> None:
    first, second = dream.launch(cases.alone, n=2, framework="torch", timeout=200)
    assert first != second
