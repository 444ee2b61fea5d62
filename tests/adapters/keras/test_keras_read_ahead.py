"""Sources on TensorFlow are read as far ahead as by Keras alone, where that changes what comes."""

from __future__ import annotations

import pytest
from keras_figures import CELLS, DEVICES, Ranks, assert_as_plain, ended_of, over
from keras_launching import Cell, call

pytestmark = pytest.mark.slow
EXHAUSTIVE = pytest.mark.exhaustive
MODULE = "keras_read_ahead"
ranks = ended_of(MODULE)


@over(
    ["a_dataset_that_is_validated_on_too", "parts_of_a_dataset"],
    cells=CELLS[1:],
    further=[Cell("tensorflow", 3), DEVICES],
)
def test_a_dataset_is_read_no_further_ahead_than_by_keras(ranks: Ranks, name: str) -> None:
    assert_as_plain(ranks, name, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", [CELLS[1], pytest.param(DEVICES, marks=EXHAUSTIVE)], ids=str)
def test_a_dataset_that_reorders_is_read_batch_by_batch(cell: Cell) -> None:
    """Where steps end an epoch early: what else was read by then would be a matter of time. The
    first batches are looked at beforehand."""
    for _, *read in call(cell, MODULE, "read_as_epochs_end"):
        assert read == [2, 2, 2, 2]
