"""Variables of Keras models are laid out as they are made: no rank ever has all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from split_launching import found
from test_tf_mesh import close

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return found("split_making", "ranks", 2)


def test_a_variable_is_in_parts_before_the_first_step(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert set(rank["kinds"]) == {"MeshVariable"}
        assert rank["narrow"] == ("<dtype: 'bfloat16'>", 32)


@pytest.mark.parametrize("what", ["made", "state"])
def test_no_rank_has_all_while_it_is_made(ranks: list[dict[str, Any]], what: str) -> None:
    """Of a model and of its optimizer's state, 94 MB each in 40 layers: 47 MB for each of two
    ranks, and some layers on their way."""
    for rank in ranks:
        figures = rank["peak"]
        assert 0.45 <= figures[what] / figures["whole"] <= 0.75, figures


def test_the_first_values_are_those_of_rank_0(ranks: list[dict[str, Any]]) -> None:
    (drawn,), _ = ranks[0]["apart"]
    (other,), _ = ranks[1]["apart"]
    assert np.abs(drawn - other).max() > 1e-2
    for rank in ranks:
        assert np.array_equal(rank["apart"][1][0], drawn)


@pytest.mark.parametrize("how", ["lazy", "late", "steps"])
def test_models_that_wait_for_a_batch_are_one_device(ranks: list[dict[str, Any]], how: str) -> None:
    """By fit, by fit after the block, by train_step."""
    for rank in ranks:
        close(rank[how], rank["one"])


def test_ranks_that_make_or_set_something_else_are_told(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["differ"].startswith("Desynchronized: The ranks built different models")
        assert "odd/kernel" in rank["differ"]
        assert rank["set apart"].startswith("Desynchronized")
        assert "set_by_hand=" in rank["set apart"]
