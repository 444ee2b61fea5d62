"""What models in shards give, and read of their parts, in ways that FSDP2 does not look for."""

from __future__ import annotations

import pytest
import shard_outputs

import dream

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", shard_outputs.CASES)
def test_is_trained_as_on_one_device(name: str) -> None:
    """Objects trained another model in silence (5e-2), attributes ended in a segmentation fault,
    and parameters that forward reads by name in torch's error of mixed tensors."""
    for rank in dream.launch(shard_outputs.gaps, name, n=2, framework="torch", timeout=200):
        assert max(rank.values()) <= 1e-6, rank


def test_what_is_given_nowhere_is_said() -> None:
    """Its loss was weighed wrongly in silence (5e-3)."""
    said = dream.launch(shard_outputs.said_of_nowhere, n=2, framework="torch", timeout=200)
    assert "what Nowhere gives is neither returned" in str(said)
