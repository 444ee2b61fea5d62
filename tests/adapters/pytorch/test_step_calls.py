"""What is looked at in a loop's first steps costs nothing later. Counted, for clocks differ."""

from __future__ import annotations

import pytest
import torch_step_calls

import dream

MOST = 1000
"""Some 150, and what a rank does while it waits for the other."""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mirrored", "sharded"])
def test_a_step_runs_few_functions_of_dream(strategy: str) -> None:
    """Batches that were read before kept the looks on: 3,100 functions a step."""
    for found in dream.launch(
        torch_step_calls.all_ways, strategy, n=2, framework="torch", timeout=120
    ):
        for way, (calls, modes) in found.items():
            assert modes == 0, way
            assert calls < MOST, way
