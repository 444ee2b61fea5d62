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
