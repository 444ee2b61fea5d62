"""Replicas with unequal shares of a batch learn what one device does, in Keras on both backends."""

from __future__ import annotations

import pytest
from keras_launching import CELLS, Cell, call

pytestmark = pytest.mark.slow
RANKS = [cell for cell in CELLS if cell.devices == 1]


@pytest.mark.parametrize("cell", RANKS, ids=str)
def test_shares_of_ones_own_change_no_number(cell: Cell) -> None:
    for rank in call(cell, "keras_shares", "differences", [3, 1]):
        assert {kind: apart for kind, apart in rank.items() if apart > 2e-6} == {}


@pytest.mark.parametrize("cell", RANKS, ids=str)
def test_speeds_are_followed_in_torch_loops_alone(cell: Cell) -> None:
    said = call(cell, "keras_shares", "refused")
    assert all("there for a torch loop alone" in each for each in said)
