"""Gradients are held once, whichever way a model was distributed."""

from __future__ import annotations

import pytest
import torch_buckets

import dream

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", ["at once", "prepared", "after a loop"])
def test_gradients_are_held_once(way: str) -> None:
    for rank in dream.launch(torch_buckets.grown, way, n=2, framework="torch", timeout=500):
        assert rank["gradients"] < 1.6, rank
