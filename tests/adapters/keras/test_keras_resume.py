"""A fit that was left in mid-epoch is gone on with by another number of replicas, each sample
once; data that cannot be gone on with says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras_launching
import numpy as np
import pytest
from keras_figures import asked, once
from keras_launching import Cell

pytestmark = pytest.mark.slow
FITS = ("arrays", "arrays_in_batches", "arrays_in_order", "python_dataset", "restored")
EXHAUSTIVE = pytest.mark.exhaustive


HELD = ("arrays_in_batches", "arrays_in_order", "restored")
"""On TensorFlow: `arrays` and `python_dataset` hold them, and torch runs them; the files that
`restored` reads are Keras's own."""
MOVES = [
    (Cell("torch", 1), Cell("torch", 2), EXHAUSTIVE),
    (Cell("torch", 2), Cell("torch", 3), ()),
    (Cell("tensorflow", 2), Cell("tensorflow", 1, 2), ()),
    (Cell("tensorflow", 1), Cell("tensorflow", 2), EXHAUSTIVE),
]


def over(*names: str) -> Callable[..., Any]:
    """Decorator: a test is run for each move from cell to cell, and each kind of data."""
    pairs = [
        pytest.param(
            (first, second), name, id=f"{first}-to-{second}-{name}",
            marks=EXHAUSTIVE if first.backend == "tensorflow" and name in HELD else marks,
        )
        for first, second, marks in MOVES
        for name in names
        if name != "dataset" or first.backend == "tensorflow"
    ]  # fmt: skip
    return pytest.mark.parametrize(("journey", "name"), pairs, indirect=["journey"])


Journey = tuple[Any, list[Any], list[Any]]


@pytest.fixture
def journey(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Journey:
    """The figures of one go, and of both parts."""
    first, second = request.param
    names = asked(request)

    def act() -> Journey:
        folder = str(tmp_path_factory.mktemp("backup"))
        (whole,) = _run(Cell(first.backend, 1), "whole", names, {})
        begun = _run(first, "begin", names, first.options, folder)
        rest = _run(second, "go_on", names, second.options, begun[0], folder)
        return whole, begun, rest

    found: Journey = once(("resume", first, second), act)
    return found


def _run(cell: Cell, name: str, *args: Any) -> list[Any]:
    return keras_launching.call(cell, "keras_data", name, *args)


def _sound(*found: Any) -> None:
    for each in found:
        assert not isinstance(each, str), each


@over(*FITS)
def test_a_fit_goes_on_in_mid_epoch(journey: Journey, name: str) -> None:
    one, begun, rest = journey
    _sound(one[name], *(rank[name] for rank in (*begun, *rest)))
    for rank in rest:
        assert rank[name]["counted"] == [2, 4], "batches of each epoch"
        for found, expected in zip(rank[name]["weights"], one[name]["weights"], strict=True):
            assert np.abs(found - expected).max() < 1e-6
        assert rank[name]["iterations"] == one[name]["iterations"]
        for log, figures in one[name]["logs"].items():
            np.testing.assert_allclose(rank[name]["logs"][log], figures[1:], atol=2e-6)


@over(*FITS[:-1])
def test_the_state_is_the_same_on_every_rank_and_after_fit(journey: Journey, name: str) -> None:
    _, begun, _ = journey
    for rank in begun:
        data = rank[name]["data"]
        assert data == rank[name]["after"] == begun[0][name]["data"]
        assert (data["epoch"], data["batches"]) == (1, 2)


@over("dataset")
def test_a_dataset_that_reshuffles_goes_on(journey: Journey, name: str) -> None:
    one, begun, rest = journey
    _sound(one[name], *(rank[name] for rank in (*begun, *rest)))
    for rank in rest:
        for key in ("weights", "optimizer"):
            for found, expected in zip(rank[name][key], one[name][key], strict=True):
                assert np.abs(found - expected).max() < 1e-6


SAID = (
    "Unsupported: Where fit stands in this data cannot be kept",
    "ConfigurationError: Batches of another size were taken before",
    "ConfigurationError: The training position in this object cannot be tracked",
)


PLACES = [
    Cell("torch", 2), Cell("tensorflow", 2),
    pytest.param(Cell("tensorflow", 1, 2), marks=EXHAUSTIVE),
]  # fmt: skip


@pytest.mark.parametrize("cell", PLACES, ids=str)
def test_what_would_lose_samples_is_refused(cell: Cell) -> None:
    for rank in _run(cell, "unkept", cell.options):
        for said, expected in zip(rank, SAID, strict=True):
            assert said.startswith(expected), said


@pytest.mark.parametrize("cell", [PLACES[0], pytest.param(PLACES[1], marks=EXHAUSTIVE)], ids=str)
def test_data_that_ends_early_on_one_rank_is_told(cell: Cell) -> None:
    """Another waits for it: here alone ranks have little patience."""
    call: Callable[..., Any] = keras_launching.call
    for (said,) in call(cell, "keras_data", "uneven", cell.options, stall=10):
        assert said.startswith(("Desynchronized: ", "WorkerFailed: ")), said
