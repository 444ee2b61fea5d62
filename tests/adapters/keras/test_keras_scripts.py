"""Scripts in the block, with nothing else changed, end as they do without dream: weights, logs, and
what every generator draws next."""

from __future__ import annotations

from functools import cache
from typing import Any

import keras_launching
import numpy as np
import pytest
from keras_figures import CELLS
from keras_launching import Cell

pytestmark = pytest.mark.slow
NAMES = (
    "convnet",
    "two_fits_in_a_row",
    "folds",
    "vae",
    "vae_of_the_global_generator",
    "transformer",
    "noise",
    "recurrent",
    "python_dataset",
    "frameworks_own_data",
    "generated",
    "step_by_hand",
)


@cache
def plain(backend: str) -> dict[str, Any]:
    return keras_launching.call(Cell(backend, 1), "keras_scripts", "run", None, NAMES)[0]


@pytest.fixture(scope="module", params=CELLS, ids=str)
def ended(request: pytest.FixtureRequest) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    cell: Cell = request.param
    ranks = keras_launching.call(cell, "keras_scripts", "run", cell.options, NAMES)
    return plain(cell.backend), ranks


@pytest.mark.parametrize("name", NAMES)
def test_a_script_ends_as_without_dream(
    ended: tuple[dict[str, Any], list[dict[str, Any]]], name: str
) -> None:
    alone, ranks = ended[0][name], [rank[name] for rank in ended[1]]
    for found in (alone, *ranks):
        assert not isinstance(found, str), found
    for rank in ranks:
        assert rank.keys() == alone.keys()
        for key, expected in alone.items():
            close = np.allclose(rank[key], expected, rtol=2e-6, atol=2e-6)
            assert close, f"{key}: {rank[key]}, without dream {expected}"


def test_every_script_is_run() -> None:
    assert keras_launching.source("keras_scripts").count("@script\n") == len(NAMES)
