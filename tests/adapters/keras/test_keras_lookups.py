"""A table that a batch looks up many times is trained as on one device, row by row."""

from __future__ import annotations

import numpy as np
import pytest
from keras_launching import Cell, call


@pytest.mark.parametrize("cell", [Cell("tensorflow", 1, 2), Cell("tensorflow", 2)], ids=str)
@pytest.mark.parametrize("own_step", [False, True])
def test_an_embedding_by_adam_is_that_of_one_device(cell: Cell, own_step: bool) -> None:
    for found in call(cell, "keras_lookups", "trained", "adam", own_step):
        for value, expected in zip(found["replicas"], found["plain"], strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cell", [Cell("tensorflow", 1, 2), Cell("tensorflow", 2)], ids=str)
def test_so_it_is_in_a_loop_around_a_tape(cell: Cell) -> None:
    for found in call(cell, "keras_lookups", "taped", "adam"):
        for value, expected in zip(found["replicas"], found["plain"], strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-6)


def test_where_rows_are_added_up_it_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    call(Cell("tensorflow", 2), "keras_lookups", "stepped", "adam")
    assert "the gradient of an embedding is added up by entry before Adam steps" in (
        capfd.readouterr().err
    )
