"""Replicas with unequal shares of a batch learn what one device does, in Keras on both backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras_figures import CELLS, asked, once, over
from keras_launching import Cell, call

pytestmark = pytest.mark.slow
HELD = {"on batch": "batches, which are cut by the same shares"}


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    cell: Cell = request.param
    given = ("keras_shares", "trained", [3, 1], asked(request))
    found: list[dict[str, Any]] = once(("shares", cell), lambda: call(cell, *given))
    return found


@over(["arrays", "batches", "on batch"], held=HELD, further=())
def test_shares_of_ones_own_change_no_number(ranks: list[dict[str, Any]], name: str) -> None:
    for rank in ranks:
        for found, expected in zip(rank["ours"][name], ranks[0]["plain"][name], strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("ranks", CELLS, ids=str, indirect=True)
def test_speeds_are_followed_in_torch_loops_alone(ranks: list[dict[str, Any]]) -> None:
    assert all("there for a torch loop alone" in rank["refused"] for rank in ranks)
