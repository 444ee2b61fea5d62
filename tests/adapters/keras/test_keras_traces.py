"""What TensorFlow traces for a fit in the block: no more than for one on one device."""

from __future__ import annotations

from collections import Counter

import keras_launching
import pytest
from keras_launching import Cell

pytestmark = pytest.mark.slow
TWO = Cell("tensorflow", 1, 2)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_fit_traces_no_more_than_one_device(devices: int) -> None:
    cell = TWO if devices == 2 else Cell("tensorflow", 1)
    strategy = "single" if devices == 1 else "mirrored"
    (found,) = keras_launching.call(cell, "keras_traces", "of_a_fit", strategy, cell.options)
    assert found["apart"] <= 1e-6
    assert len(found["ours"]) <= len(found["plain"]), found
    assert Counter(found["ours"])["multi_step_on_iterator"] == 1, "the short last batch too"
    assert found["kinds"] == ["OwnedIterator"], "no iterator over devices"


@pytest.mark.parametrize("kind", ["arrays", "tf.data"])
@pytest.mark.parametrize("cell", [Cell("tensorflow", 2), TWO], ids=str)
def test_a_step_knows_the_length_of_batches_that_are_all_as_long(cell: Cell, kind: str) -> None:
    """As it does in plain Keras, whose graph is the smaller for it."""
    names = "keras_traces", "lengths_of_a_fit", cell.options
    assert all(set(found) == {4} for found in keras_launching.call(cell, *names, 32, kind))
    assert all(set(found) == {None} for found in keras_launching.call(cell, *names, 30, kind))


@pytest.mark.exhaustive
def test_shares_that_are_brought_to_devices_ahead_are_the_same() -> None:
    (found,) = keras_launching.call(TWO, "keras_traces", "brought_ahead", TWO.options)
    assert found["apart"] <= 1e-6
    assert found["kinds"] == ["DistributedIterator"]
