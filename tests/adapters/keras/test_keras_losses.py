"""Sums, masks, weights and single numbers as losses: the block changes no figure."""

from __future__ import annotations

from typing import Any

import pytest
from keras_figures import assert_as_on_one_device, assert_every_case_is_run, over, ranks_of

NAMES = [
    "summed",
    "summed_beside_a_penalty",
    "mean_with_sample_weight",
    "masked_words",
    "masked_words_of_a_recurrent_net",
    "masked_words_with_weights",
    "weighted_metrics_of_masked_words",
    "classes_that_are_ignored",
    "one_number_that_is_a_mean",
    "one_number_that_is_a_sum",
    "metrics_of_one_number",
    "metrics_of_answers_seldom_right",
    "a_loss_that_reduces_by_itself",
    "weights_of_classes",
    "several_outputs_weighed",
    "labels_of_one_output_of_two",
    "a_layer_adds_a_mean",
    "a_layer_adds_a_mean_before_a_batch_norm",
    "a_layer_adds_a_mean_behind_recurrent_dropout",
    "a_layer_adds_a_sum",
    "a_layer_adds_a_sum_in_training",
    "a_layer_adds_a_sum_later",
    "a_model_that_computes_a_summed_loss",
]
pytestmark = pytest.mark.slow
ranks = ranks_of("keras_losses")
HELD = {
    "classes_that_are_ignored": "masked_words: both come to a loss as weights of its rows",
    "one_number_that_is_a_sum": "metrics_of_one_number, which is told what such a number is too",
    "a_loss_that_reduces_by_itself": "that, and sum of test_keras_own_steps",
    "a_model_that_computes_a_summed_loss": "that, and sum of test_keras_own_steps",
    "weights_of_classes": "sample_weight of the contract: Keras makes the one of the other",
    "a_layer_adds_a_sum": "a_layer_adds_a_sum_in_training",
    "a_layer_adds_a_sum_later": "a_layer_adds_a_sum_in_training",
    "summed": "summed_beside_a_penalty",
    "mean_with_sample_weight": "sample_weight of the contract",
    "masked_words_of_a_recurrent_net": "masked_words, and recurrent_one_way of test_keras_scripts",
    "masked_words_with_weights": "masked_words, and sample_weight of the contract",
    "one_number_that_is_a_mean": "one_number_that_is_a_sum",
    "a_layer_adds_a_mean": "a_layer_adds_a_sum",
    "a_layer_adds_a_mean_before_a_batch_norm": "two devices, whose replicas take turns there",
    "weighted_metrics_of_masked_words": "masked_words; weights change in place on torch alone",
    "metrics_of_answers_seldom_right": "metrics_of_one_number",
    "several_outputs_weighed": "several_outputs of the contract",
    "labels_of_one_output_of_two": "a batch's rows are told from outputs on TensorFlow",
}


@over(NAMES, held=HELD, devices=["a_layer_adds_a_mean_before_a_batch_norm"])
def test_figures_are_those_of_one_device(ranks: list[dict[str, Any]], name: str) -> None:
    assert_as_on_one_device(ranks, name)


def test_every_case_is_run() -> None:
    assert_every_case_is_run("keras_losses", NAMES)
