"""A table that a batch looks up many times is trained as on one device, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras_figures import DEVICES, asked, once, over
from keras_launching import Cell, call

pytestmark = pytest.mark.slow


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    cell: Cell = request.param
    given = ("keras_lookups", "trained", "adam", asked(request))
    found: list[dict[str, Any]] = once(("lookups", cell), lambda: call(cell, *given))
    return found


@over(
    ["fit", "own step", "taped"], held=["own step"], devices=["own step", "taped"],
    cells=[Cell("tensorflow", 2)], further=[DEVICES],
)  # fmt: skip
def test_an_embedding_by_adam_is_that_of_one_device(ranks: list[dict[str, Any]], name: str) -> None:
    """The gradient is the same table's, whoever asks for it: by ranks in a fit, by devices in a
    step of one's own."""
    plain = ranks[0][name]["plain"]
    for rank in ranks:
        for value, expected in zip(rank[name]["replicas"], plain, strict=True):
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
