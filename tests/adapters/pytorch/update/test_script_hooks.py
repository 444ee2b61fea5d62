"""Hooks on gradients see the gradient of the global batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import script_hooks_job

import dream

pytestmark = pytest.mark.slow

RANKS = (2, pytest.param(3, marks=pytest.mark.exhaustive))


@cache
def results(ranks: int) -> list[tuple[dict[str, Any], list[str]]]:
    return dream.launch(script_hooks_job.run_all, n=ranks, framework="torch", timeout=300)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("loop", [name for name, *_ in script_hooks_job.cells()])
def test_a_loop_with_hooks_ends_with_the_weights_of_one_device(loop: str, ranks: int) -> None:
    alone, *together = (rank[0][loop] for rank in (*results(1), *results(ranks)))
    for found in (alone, *together):
        assert not isinstance(found, str), found
    assert np.abs(alone - together[0]).max() < 1e-6
    for other in together[1:]:
        np.testing.assert_array_equal(together[0], other)


@pytest.mark.parametrize("ranks", RANKS)
def test_what_a_hook_on_something_computed_sees_is_said_once_a_block(ranks: int) -> None:
    lines = [line for line in results(ranks)[0][1] if "rows of the whole" in line]
    assert len(lines) == 11  # in each block where a tensor's, or a module's, changes it


def test_hooks_of_several_gradients_are_said() -> None:
    lines = [line for line in results(2)[0][1] if "register_multi_grad_hook" in line]
    assert len(lines) == 1


def test_a_hook_on_the_node_of_a_parameter_is_said() -> None:
    lines = [line for line in results(2)[0][1] if "that adds up a parameter's gradient" in line]
    assert len(lines) == 1


def test_a_hook_is_refused_where_several_passes_make_a_gradient() -> None:
    for found, _ in results(2):
        assert "accumulate=" in found["accumulate"]
