"""Steps of the users' own, callbacks and data of any length: the block changes no figure, logs and
counted updates among them."""

from __future__ import annotations

from typing import Any

import keras_launching
import pytest
from keras_launching import Cell
from test_keras_fit import assert_close

NAMES = [
    "coder_with_its_own_metrics",
    "results_nested_in_results",
    "two_players_with_an_optimizer_each",
    "parts_that_the_first_step_builds",
    "targets_and_a_metric_in_float64",
    "fit_after_a_refused_fit",
    "callbacks_that_evaluate",
    "callbacks_that_watch_the_logs",
    "a_schedule_of_the_learning_rate",
    "averages_of_the_weights",
    "gradients_accumulated",
    "global_norms",
    "compiled_by_xla",
    "batches_by_hand",
    "data_of_unknown_length",
    "datasets_of_unknown_length",
]
CELLS = [
    Cell("torch", 2),
    Cell("tensorflow", 2),
    pytest.param(Cell("torch", 3), marks=pytest.mark.exhaustive),
    pytest.param(Cell("tensorflow", 3), marks=pytest.mark.exhaustive),
    pytest.param(Cell("tensorflow", 1, 2), marks=pytest.mark.exhaustive),
]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=CELLS, ids=str)
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    cell: Cell = request.param
    return keras_launching.call(cell, "keras_steps", "run", "mirrored", cell.options, NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_those_of_one_device(
    request: pytest.FixtureRequest, ranks: list[dict[str, Any]], name: str
) -> None:
    if name == "parts_that_the_first_step_builds" and "1x2" in request.node.name:
        pytest.skip("TensorFlow makes no variables inside a replica's step")
    plain, _ = ranks[0][name]
    for rank in ranks:
        _, figures = rank[name]
        assert not isinstance(figures, str), figures
        for key, expected in plain.items():
            assert_close(figures[key], expected, f"{name} {key}")


def test_every_case_is_run() -> None:
    assert keras_launching.source("keras_steps").count("@case\n") == len(NAMES)
