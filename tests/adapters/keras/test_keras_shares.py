"""Replicas with unequal shares of a batch learn what one device does, in Keras on both backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras_launching import CELLS, call

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[cell for cell in CELLS if cell.devices == 1], ids=str)
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return call(request.param, "keras_shares", "trained", [3, 1])


@pytest.mark.parametrize("kind", ["arrays", "batches", "on batch"])
def test_shares_of_ones_own_change_no_number(ranks: list[dict[str, Any]], kind: str) -> None:
    for rank in ranks:
        for found, expected in zip(rank["ours"][kind], ranks[0]["plain"][kind], strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def test_speeds_are_followed_in_torch_loops_alone(ranks: list[dict[str, Any]]) -> None:
    assert all("there for a torch loop alone" in rank["refused"] for rank in ranks)
