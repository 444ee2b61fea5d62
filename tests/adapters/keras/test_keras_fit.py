"""What Keras users write, on both backends: the block changes no figure."""

from __future__ import annotations

from typing import Any

import pytest
from keras_figures import assert_as_on_one_device, assert_every_case_is_run, ranks_of
from keras_launching import CELLS

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
ranks = ranks_of("keras_cases", NAMES, CELLS)


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_those_of_one_device(ranks: list[dict[str, Any]], name: str) -> None:
    assert_as_on_one_device(ranks, name)


def test_every_case_is_run() -> None:
    assert_every_case_is_run("keras_cases", NAMES)
