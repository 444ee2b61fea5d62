"""Loops as people write them, at 2 and 3 ranks, held against one device."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch_loops

import dream

RANKS = (2, pytest.param(3, marks=pytest.mark.exhaustive))


LOOPS = [
    pytest.param(name, marks=[pytest.mark.exhaustive] if name in torch_loops.HELD else [])
    for name in torch_loops.LOOPS
]


@cache
def results(ranks: int, *, held: bool) -> list[dict[str, Any]]:
    job = torch_loops.run_held if held else torch_loops.run_all
    return dream.launch(job, n=ranks, framework="torch", timeout=500)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_ends_with_the_weights_of_one_device(loop: str, ranks: int) -> None:
    held = loop in torch_loops.HELD
    alone = results(1, held=held)[0][loop]
    together = [rank[loop] for rank in results(ranks, held=held)]
    for found in (alone, *together):
        assert not isinstance(found, str), found
    assert np.abs(alone - together[0]).max() < 1e-6
    for other in together[1:]:
        np.testing.assert_array_equal(together[0], other)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("part_of_a_model_called_alone", "ConfigurationError: These gradients were not averaged"),
        ("part_after_the_whole", "ConfigurationError: These gradients were not averaged"),
        ("two_backwards_of_one_forward", "ConfigurationError: These gradients were not averaged"),
        ("gradients_set_by_hand", "ConfigurationError: These gradients were not averaged"),
        ("two_backwards_into_two_heads", "ConfigurationError: These gradients were not averaged"),
        (
            "batch_sampler_put_in_later",
            "Unsupported: A batch sampler that replaces",
        ),
        ("model_without_shapes", "Unsupported: A loss comes of the call that gave"),
        ("average_of_whole_numbers", "Unsupported: There is no mean of this dtype"),
    ],
)
def test_what_cannot_be_exact_is_refused(fault: str, said: str, ranks: int) -> None:
    for rank in results(ranks, held=False):
        assert rank[fault].startswith(said), rank[fault]
