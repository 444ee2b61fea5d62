"""Branches of tf.cond on a mesh read what was there before them, a step writes what was assigned
last, and what draws there is named."""

from __future__ import annotations

from typing import Any

import pytest
from tf_split_launching import close, found

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return found("tf_sharding_branches", "branches")[0]


def test_updates_of_accumulated_gradients_are_counted_as_on_one_device(
    here: dict[str, Any],
) -> None:
    close(here["shared"], here["alone"])


def test_what_is_read_after_a_branch_that_assigns_it_is_refused(here: dict[str, Any]) -> None:
    assert "what a branch of tf.cond has assigned" in here["averaged"]


def test_draws_by_tensorflows_operations_are_named(here: dict[str, Any]) -> None:
    assert here["quiet"]
    assert "StatelessRandom" in here["said"]


@pytest.fixture(scope="module")
def assigned() -> dict[str, Any]:
    return found("tf_sharding_branches", "assigned")[0]


def test_what_a_step_assigns_last_is_kept(assigned: dict[str, Any]) -> None:
    for shared, alone in zip(assigned["shared"][0], assigned["alone"][0], strict=True):
        close(shared, alone)


def test_metrics_that_compute_with_their_states_are_those_of_one_device(
    assigned: dict[str, Any],
) -> None:
    close(assigned["shared"][1], assigned["alone"][1])


def test_a_step_that_makes_its_targets_is_taken(assigned: dict[str, Any]) -> None:
    close(assigned["shared"][2], assigned["alone"][2])
    assert "a step that changes Denoising.calls" in assigned["said"]


def test_what_is_assigned_in_a_branch_and_outside_is_refused(assigned: dict[str, Any]) -> None:
    assert "assigned in both" in assigned["emptied_in_a_branch"]


def test_one_condition_for_many_elements_is_refused(assigned: dict[str, Any]) -> None:
    """TensorFlow ends by a segmentation fault."""
    assert "a condition without dims" in assigned["emptied_by_one_condition"]


def test_draws_that_a_mesh_cannot_make_are_refused(assigned: dict[str, Any]) -> None:
    assert "Received: RandomUniform" in assigned["drawn_by_tensorflow"]
