"""A table that a batch looks up many times is trained as on one device, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras_launching import Cell, call


@pytest.fixture(scope="module", params=[Cell("tensorflow", 1, 2), Cell("tensorflow", 2)], ids=str)
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return call(request.param, "keras_lookups", "trained", "adam")


@pytest.mark.parametrize("way", ["fit", "own step", "taped"])
def test_an_embedding_by_adam_is_that_of_one_device(ranks: list[dict[str, Any]], way: str) -> None:
    plain = ranks[0][way]["plain"]
    for rank in ranks:
        for value, expected in zip(rank[way]["replicas"], plain, strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("way", "strategy"),
    [
        ("stepped", "mirrored"),
        ("fitted", "model_parallel:split=pipeline"),
        ("fitted", "parameter_server"),
        pytest.param("fitted", "local_sgd:every=2", marks=pytest.mark.exhaustive),
    ],
)
def test_where_rows_are_added_up_it_is_said(
    capfd: pytest.CaptureFixture[str], way: str, strategy: str
) -> None:
    call(Cell("tensorflow", 2), "keras_lookups", way, "adam", strategy=strategy)
    assert "the gradient of an embedding is added up by entry before Adam steps" in (
        capfd.readouterr().err
    )
