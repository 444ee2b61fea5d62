"""Sparse gradients, parametrizations, adapters, compiled models, bare parameters and the like: at
2 and 3 ranks, held against the plain script on one device."""

from __future__ import annotations

from functools import cache
from typing import Any

import foreign_cells
import numpy as np
import pytest

import dream

pytestmark = pytest.mark.slow

RANKS = (2, pytest.param(3, marks=pytest.mark.exhaustive))


@cache
def results(ranks: int) -> list[dict[str, Any]]:
    return dream.launch(foreign_cells.run_all, ranks == 1, n=ranks, framework="torch", timeout=500)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("cell", foreign_cells.CELLS)
def test_a_cell_ends_as_without_dream(cell: str, ranks: int) -> None:
    alone, together = results(1)[0][cell], [rank[cell] for rank in results(ranks)]
    for found in (alone, *together):
        assert not isinstance(found, str), found
    assert np.abs(alone - together[0]).max() < 1e-6
    for other in together[1:]:
        np.testing.assert_array_equal(together[0], other)


@pytest.mark.parametrize("ranks", RANKS)
def test_gradients_of_torch_func_are_refused(ranks: int) -> None:
    for rank in results(ranks):
        assert "inside torch.func (Grad)" in rank["differentiated_by_functions"]
