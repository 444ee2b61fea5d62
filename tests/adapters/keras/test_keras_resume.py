"""A fit that was left in mid-epoch is gone on with by another number of replicas, each sample
once; data that cannot be gone on with says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import keras_launching
import numpy as np
import pytest
from keras_launching import Cell

pytestmark = pytest.mark.slow
FITS = ("arrays", "arrays_in_batches", "arrays_in_order", "python_dataset", "restored")
EXHAUSTIVE = pytest.mark.exhaustive


def _named(first: Cell, second: Cell, *marks: Any) -> Any:
    return pytest.param((first, second), id=f"{first}-to-{second}", marks=marks)


JOURNEYS = [
    _named(Cell("torch", 1), Cell("torch", 2), EXHAUSTIVE),
    _named(Cell("torch", 2), Cell("torch", 3)),
    _named(Cell("tensorflow", 2), Cell("tensorflow", 1, 2)),
    _named(Cell("tensorflow", 1), Cell("tensorflow", 2), EXHAUSTIVE),
]
Journey = tuple[Any, list[Any], list[Any]]


@cache
def whole(backend: str) -> Any:
    return keras_launching.call(Cell(backend, 1), "keras_data", "whole", {})[0]


@pytest.fixture(scope="module", params=JOURNEYS)
def journey(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Journey:
    """The figures of one go, and of both parts."""
    first, second = request.param
    folder = str(tmp_path_factory.mktemp("backup"))
    begun = keras_launching.call(first, "keras_data", "begin", first.options, folder)
    kept = begun[0]
    rest = keras_launching.call(second, "keras_data", "go_on", second.options, kept, folder)
    return whole(first.backend), begun, rest


def _sound(*found: Any) -> None:
    for each in found:
        assert not isinstance(each, str), each


@pytest.mark.parametrize("kind", FITS)
def test_a_fit_goes_on_in_mid_epoch(journey: Journey, kind: str) -> None:
    one, begun, rest = journey
    _sound(one[kind], *(rank[kind] for rank in (*begun, *rest)))
    for rank in rest:
        assert rank[kind]["counted"] == [2, 4], "batches of each epoch"
        for found, expected in zip(rank[kind]["weights"], one[kind]["weights"], strict=True):
            assert np.abs(found - expected).max() < 1e-6
        assert rank[kind]["iterations"] == one[kind]["iterations"]
        for name, figures in one[kind]["logs"].items():
            np.testing.assert_allclose(rank[kind]["logs"][name], figures[1:], atol=2e-6)


@pytest.mark.parametrize("kind", FITS[:-1])
def test_the_state_is_the_same_on_every_rank_and_after_fit(journey: Journey, kind: str) -> None:
    _, begun, _ = journey
    for rank in begun:
        data = rank[kind]["data"]
        assert data == rank[kind]["after"] == begun[0][kind]["data"]
        assert (data["epoch"], data["batches"]) == (1, 2)


def test_a_dataset_that_reshuffles_goes_on(journey: Journey) -> None:
    one, begun, rest = journey
    if "dataset" not in one:
        pytest.skip("a tf.data.Dataset, which is tried on TensorFlow")
    _sound(one["dataset"], *(rank["dataset"] for rank in (*begun, *rest)))
    for rank in rest:
        for key in ("weights", "optimizer"):
            for found, expected in zip(rank["dataset"][key], one["dataset"][key], strict=True):
                assert np.abs(found - expected).max() < 1e-6


SAID = (
    "Unsupported: Where fit stands in this data cannot be kept",
    "ConfigurationError: Batches of another size were taken before",
    "ConfigurationError: It is not known where training stands",
    ("Desynchronized: ", "WorkerFailed: "),
)


PLACES = [
    Cell("torch", 2), Cell("tensorflow", 2),
    pytest.param(Cell("tensorflow", 1, 2), marks=EXHAUSTIVE),
]  # fmt: skip


@pytest.mark.parametrize("cell", PLACES, ids=str)
def test_what_would_lose_samples_is_refused(cell: Cell) -> None:
    for rank in _uneven(cell):
        assert len(rank) == (4 if cell.ranks > 1 else 3)
        for said, expected in zip(rank, SAID, strict=False):
            assert said.startswith(expected), said


def _uneven(cell: Cell) -> list[list[str]]:
    call: Callable[..., Any] = keras_launching.call
    found: list[list[str]] = call(cell, "keras_data", "uneven", cell.options, stall=10)
    return found
