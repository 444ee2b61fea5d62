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


@pytest.mark.exhaustive
def test_shares_that_are_brought_to_devices_ahead_are_the_same() -> None:
    (found,) = keras_launching.call(TWO, "keras_traces", "brought_ahead", TWO.options)
    assert found["apart"] <= 1e-6
    assert found["kinds"] == ["DistributedIterator"]
