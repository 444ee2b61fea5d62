"""Branches of tf.cond on a mesh read what was there before them, and what draws there is named."""

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
