"""Batches of tensors that differ in their rows train as on one device, or are said; so are models
that draw, or take strings."""

from __future__ import annotations

import pytest
from keras_figures import CELLS, DEVICES, FURTHER, Ranks, assert_as_plain, ended_of, over
from keras_launching import Cell, call

pytestmark = pytest.mark.slow
MODULE = "keras_rows"
ranks = ended_of(MODULE)
ROWS = "rows are no multiples of one another's"
DRAWS, BEHIND = "predictions_of_what_draws", "many_rows_behind_each_other"


@over(
    ["many_rows_for_each_sample", BEHIND, "a_single_row_beside_a_batch", DRAWS],
    devices=["many_rows_for_each_sample", DRAWS],
)
def test_rows_of_a_batch_are_those_of_one_device(ranks: Ranks, name: str) -> None:
    assert_as_plain(ranks, name, atol=2e-6)


@over(["strings"], cells=CELLS[1:], further=FURTHER[1:])
def test_strings_are_shared_out(ranks: Ranks, name: str) -> None:
    assert_as_plain(ranks, name, atol=2e-6)


@pytest.mark.parametrize("cell", [*CELLS, DEVICES], ids=str)
def test_a_batch_that_divides_tensor_by_tensor_is_said(cell: Cell) -> None:
    for rank, (alike, unlike) in enumerate(call(cell, MODULE, "said_of_rows")):
        assert ROWS not in alike, alike
        assert "train_step" not in alike, alike
        assert rank or "3, 5 rows for 2 replicas" in unlike, unlike
