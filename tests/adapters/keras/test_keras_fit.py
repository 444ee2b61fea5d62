"""What Keras users write, on both backends: the block changes no figure."""

from __future__ import annotations

from typing import Any

import keras_launching
import numpy as np
import pytest
from keras_launching import CELLS, Cell

NAMES = [
    "own_train_step",
    "metrics_of_many_kinds",
    "validation_split",
    "steps_per_epoch",
    "eagerly",
    "several_steps_an_execution",
    "scaled_losses",
    "a_schedule_by_name_of_optimizer",
    "frozen_layers_and_penalties",
    "batch_by_batch",
    "files_and_restoring",
    "python_dataset",
    "python_generator",
    "tensorflow_dataset",
    "nested_inputs_and_callable_loss",
]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=CELLS, ids=str)
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    cell: Cell = request.param
    return keras_launching.call(cell, "keras_cases", "run", "mirrored", cell.options, NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_those_of_one_device(ranks: list[dict[str, Any]], name: str) -> None:
    plain, _ = ranks[0][name]
    for rank in ranks:
        _, figures = rank[name]
        assert not isinstance(figures, str), figures
        for key, expected in plain.items():
            assert_close(figures[key], expected, f"{name} {key}")


def test_every_case_is_run() -> None:
    text = keras_launching.source("keras_cases")
    assert text.count("@case\n") == len(NAMES)


DIVERGES = {"callbacks_that_watch_the_logs": 2e-5}
"""Its loss comes to 48, on one device too: rounding grows with it."""


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
