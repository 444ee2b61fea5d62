"""Replicas with unequal shares of a batch learn what one device does, in Keras on both backends."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from keras_figures import CELLS, asked, once, over
from keras_launching import Cell, call

pytestmark = pytest.mark.slow
SHARES = ["by hand", "auto"]
HELD = {"on batch": "batches, which are cut by the same shares"}


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    cell: Cell = request.param
    given = ("keras_shares", "trained", asked(request))
    found: list[dict[str, Any]] = once(("shares", cell), lambda: call(cell, *given))
    return found


@over(["arrays", "batches", "on batch"], held=HELD, further=())
def test_shares_of_ones_own_change_no_number(ranks: list[dict[str, Any]], name: str) -> None:
    for shares in SHARES:
        for rank in ranks:
            plain = ranks[0]["plain"][shares][name]
            for found, expected in zip(rank[shares][name], plain, strict=True):
                np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


@over(["arrays", "batches", "on batch"], held=HELD, further=())
def test_shares_follow_speeds(ranks: list[dict[str, Any]], name: str) -> None:
    said = [line for line in ranks[0]["said"]["auto", name] if "shares follow" in line]
    assert said, ranks[0]["said"]["auto", name]
    found = re.search(r"of \d+ samples \[(\d+), (\d+)\] by rank", said[-1])
    assert found, said
    assert int(found[1]) > int(found[2])


@pytest.mark.parametrize("ranks", CELLS, ids=str, indirect=True)
def test_a_step_that_failed_leaves_no_clock_running(ranks: list[dict[str, Any]]) -> None:
    """The next trace met a time of a graph that is gone: TensorFlow's "out of scope"."""
    assert len({rank["goes on"] for rank in ranks}) == 1
