"""What the users' own draws, sums, optimizers and precision come to, beside plain Keras."""

from __future__ import annotations

import pytest
from keras_figures import CELLS, DEVICES, Ranks, assert_as_plain, ended_of, over

pytestmark = pytest.mark.slow
MODULE = "keras_own_numbers"
HELD = {
    "a_summed_loss": "sum of test_keras_own_steps, and summed_beside_a_penalty of ..._losses",
    "tracked_sums": "two devices of one process, and torch",
    "optimizers_with_rules_of_their_own": "two devices of one process, and torch",
}
ranks = ended_of(MODULE)


@over(["noise_of_a_written_size"], further=())
def test_noise_of_a_size_that_is_written_down_is_that_of_one_device(
    ranks: Ranks, name: str
) -> None:
    assert_as_plain(ranks, name, atol=1e-6)


@over(["a_summed_loss"], held=HELD, further=[DEVICES])
def test_a_step_of_a_summed_loss_is_that_of_one_device(ranks: Ranks, name: str) -> None:
    assert_as_plain(ranks, name, atol=1e-6)


@over(["tracked_sums"], held=HELD, devices=HELD, further=[DEVICES])
def test_sums_that_a_step_tracks_are_those_of_one_device(ranks: Ranks, name: str) -> None:
    assert_as_plain(ranks, name, rtol=1e-6)


@over(["augmented_by_keras"], held=["augmented_by_keras"], devices=["augmented_by_keras"])
def test_numbers_for_all_samples_are_told_from_those_of_each(ranks: Ranks, name: str) -> None:
    """By the place of a draw in its step where sizes are alike."""
    assert_as_plain(ranks, name, atol=5e-6)


@over(["answers_for_which_it_draws"], devices=["answers_for_which_it_draws"])
def test_draws_of_answers_are_those_of_one_device(ranks: Ranks, name: str) -> None:
    assert_as_plain(ranks, name, atol=1e-6)


@over(["numbers_that_weigh"])
def test_numbers_count_for_what_they_weigh(ranks: Ranks, name: str) -> None:
    """A number of rows, a constant or a mask's sum, as numbers or as tensors."""
    assert_as_plain(ranks, name, rtol=1e-5)


@over(["optimizers_with_rules_of_their_own"], held=HELD, devices=HELD, further=[DEVICES])
def test_optimizers_with_rules_of_their_own_are_those_of_one_device(
    ranks: Ranks, name: str
) -> None:
    assert_as_plain(ranks, name, atol=1e-6)


@over(["float64"], cells=CELLS[1:], further=[DEVICES])
def test_a_share_is_weighed_in_the_dtype_of_a_float64_model(ranks: Ranks, name: str) -> None:
    """On TensorFlow: on torch Keras rounds to float32 in such models by itself. By far less than a
    float32 can tell."""
    assert_as_plain(ranks, name, atol=1e-13)
