"""Where torch's store listens."""

from __future__ import annotations

import pytest
import torch_store

import dream


@pytest.mark.slow
def test_each_group_has_a_store_of_its_own() -> None:
    """A rank that came to the former group's address would wait there for ever."""
    for sums, (first, second, third) in dream.launch(
        torch_store.two_groups, n=2, framework="torch", timeout=300
    ):
        assert sums == [3.0, 3.0]
        assert first is not None
        assert second is not None
        assert first != second
        assert third is None
