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


@pytest.mark.slow
def test_a_known_step_starts_at_once_after_its_block_too() -> None:
    """Torch's look at what a pass starts from was made in every one: a fifth of dream's own time in
    a small model's step."""
    looks = dream.launch(
        torch_step_calls.looks_after_the_block, n=2, framework="torch", timeout=120,
        env={"DREAM_WARM": "0"},  # with Keras imported, its functions are looked for
    )  # fmt: skip
    assert looks == [0, 0]
