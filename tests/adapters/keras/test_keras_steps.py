"""Steps of the users' own, callbacks and data of any length: the block changes no figure, logs and
counted updates among them."""

from __future__ import annotations

from typing import Any

import pytest
from keras_figures import assert_as_on_one_device, assert_every_case_is_run, over, ranks_of

NAMES = [
    "coder_with_its_own_metrics",
    "results_nested_in_results",
    "figures_by_no_order",
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
    "noise_on_batches_behind_each_other",
    "loops_of_torchs",
    "batches_by_hand",
    "batches_of_a_loader_by_hand",
    "data_of_unknown_length",
    "datasets_of_unknown_length",
    "batches_all_of_one_length",
]
pytestmark = pytest.mark.slow
ranks = ranks_of("keras_steps")
HELD = {
    "coder_with_its_own_metrics": "two_players_with_an_optimizer_each, whose metrics are its own",
    "results_nested_in_results": "own_train_step of test_keras_fit: what a step gives is nested",
    "figures_by_no_order": "Keras orders dicts in one way there",
    "targets_and_a_metric_in_float64": "float64 of test_keras_own_numbers",
    "callbacks_that_evaluate": "callbacks_that_watch_the_logs, where each epoch validates",
    "fit_after_a_refused_fit": "what is refused never comes to the backend",
    "global_norms": "global_clipnorm of the contract",
    "a_schedule_of_the_learning_rate": "callbacks_that_watch_the_logs, which set it",
    "noise_on_batches_behind_each_other": "noise of test_keras_scripts",
    "batches_of_a_loader_by_hand": "a loader of torch's deals nothing there",
    "data_of_unknown_length": "datasets_of_unknown_length, and python_generator of test_keras_fit",
}


@over(NAMES, held=HELD)
def test_figures_are_those_of_one_device(
    request: pytest.FixtureRequest, ranks: list[dict[str, Any]], name: str
) -> None:
    if name == "parts_that_the_first_step_builds" and "1x2" in request.node.name:
        pytest.skip("TensorFlow makes no variables inside a replica's step")
    assert_as_on_one_device(ranks, name)


def test_every_case_is_run() -> None:
    assert_every_case_is_run("keras_steps", NAMES)
