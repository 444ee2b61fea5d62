"""Holds the figures that cases end with, on every rank of a cell, to those of one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras_launching
import numpy as np
import pytest
from keras_launching import Cell

_EXHAUSTIVE = pytest.mark.exhaustive
CELLS = [
    Cell("torch", 2),
    Cell("tensorflow", 2),
    pytest.param(Cell("torch", 3), marks=_EXHAUSTIVE),
    pytest.param(Cell("tensorflow", 3), marks=_EXHAUSTIVE),
    pytest.param(Cell("tensorflow", 1, 2), marks=_EXHAUSTIVE),
]
DIVERGES = {"callbacks_that_watch_the_logs": 2e-5}
"""Its loss comes to 48, on one device too: rounding grows with it."""

Ranks = list[dict[str, Any]]


def ranks_of(module: str, names: Sequence[str], cells: Sequence[Any] = CELLS) -> Callable[..., Any]:
    """A fixture: what a module's cases ended with on each rank, once for each cell."""

    @pytest.fixture(scope="module", params=cells, ids=str, name="ranks")
    def ranks(request: pytest.FixtureRequest) -> Ranks:
        cell: Cell = request.param
        return keras_launching.call(cell, module, "run", "mirrored", cell.options, list(names))

    return ranks  # type: ignore[no-any-return]  # pytest's own kind


def assert_as_on_one_device(ranks: Ranks, name: str) -> None:
    plain, _ = ranks[0][name]
    for rank in ranks:
        _, figures = rank[name]
        assert not isinstance(figures, str), figures
        for key, expected in plain.items():
            assert_close(figures[key], expected, f"{name} {key}")


def assert_every_case_is_run(module: str, names: Sequence[str]) -> None:
    assert keras_launching.source(module).count("@case\n") == len(names)


def assert_close(found: Any, expected: Any, what: str) -> None:
    """Within 1e-6, or 2e-6 of logs that are sums of many."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), what
        for key in expected:
            assert_close(found[key], expected[key], f"{what} {key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), what
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, what)
    else:
        rtol = DIVERGES.get(what.partition(" ")[0], 2e-6)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-6, err_msg=what)
