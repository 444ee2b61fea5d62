"""What Keras users write, on both backends: the block changes no figure."""

from __future__ import annotations

from typing import Any

import pytest
from keras_figures import assert_as_on_one_device, assert_every_case_is_run, over, ranks_of

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
ranks = ranks_of("keras_cases")
HELD = {
    "frozen_layers_and_penalties": "summed_beside_a_penalty of test_keras_losses",
    "steps_per_epoch": "python_generator, whose epochs are steps too",
    "validation_split": "callbacks_that_watch_the_logs of test_keras_steps, which validate",
    "scaled_losses": "clip_norm_with_a_scaled_loss of the contract",
    "a_schedule_by_name_of_optimizer": "a_schedule_of_the_learning_rate of test_keras_steps",
    "batch_by_batch": "batches_by_hand of test_keras_steps",
    "files_and_restoring": "restored of test_keras_resume",
    "python_dataset": "python_dataset of test_keras_scripts",
    "tensorflow_dataset": "dataset_of_the_users of the contract, frameworks_own_data of scripts",
}
DEVICES = (
    "own_train_step",
    "several_steps_an_execution",
    "python_generator",
)


@over(NAMES, held=HELD, devices=DEVICES)
def test_figures_are_those_of_one_device(ranks: list[dict[str, Any]], name: str) -> None:
    assert_as_on_one_device(ranks, name)


def test_every_case_is_run() -> None:
    assert_every_case_is_run("keras_cases", NAMES)
