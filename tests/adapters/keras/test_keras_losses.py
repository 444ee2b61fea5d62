"""Sums, masks, weights and single numbers as losses: the block changes no figure."""

from __future__ import annotations

from typing import Any

import keras_launching
import pytest
from keras_launching import Cell
from test_keras_fit import assert_close

NAMES = [
    "summed",
    "summed_beside_a_penalty",
    "mean_with_sample_weight",
    "masked_words",
    "masked_words_of_a_recurrent_net",
    "masked_words_with_weights",
    "one_number_that_is_a_mean",
    "one_number_that_is_a_sum",
    "a_loss_that_reduces_by_itself",
    "weights_of_classes",
    "several_outputs_weighed",
    "a_layer_adds_a_mean",
    "a_layer_adds_a_sum",
    "a_model_that_computes_a_summed_loss",
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
    return keras_launching.call(cell, "keras_losses", "run", "mirrored", cell.options, NAMES)


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
    assert keras_launching.source("keras_losses").count("@case\n") == len(NAMES)
