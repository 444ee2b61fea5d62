"""Keras's replicas that part are found, what parts them is named, and what can go on alike does."""

from __future__ import annotations

from typing import Any

import pytest
from keras_figures import asked, once, over
from keras_launching import Cell, call

pytestmark = pytest.mark.slow
WEIGHT = "last/bias, rank 1 unlike rank 0, 1 of 2 parameters"
SAID = {
    "weight": WEIGHT,
    "weight by hand": WEIGHT,
    "last step": WEIGHT,
    "rate": "learning_rate of SGD, 0.05",
    "rate from the start": "learning_rate of SGD, 0.05",
}
HELD = {
    "weight by hand": "weight: what is compared is the same",
    "last step": "weight",
    "rate from the start": "rate",
    "labels": "other_labels_on_each_rank of test_keras_checks",
    "well": "weight, which a comparison finds; how often is counted in Python",
}
"""On TensorFlow."""


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    cell: Cell = request.param
    names = asked(request)
    found: list[dict[str, Any]] = once(
        ("drift", cell), lambda: call(cell, "keras_drift", "parted", names)
    )
    return found


@over([*SAID], held=HELD, further=())
def test_what_parts_replicas_is_named_on_every_rank(ranks: list[dict[str, Any]], name: str) -> None:
    for rank in ranks:
        assert rank[name].startswith("Desynchronized: ")
        assert SAID[name] in rank[name]


@over(["labels"], held=HELD, further=())
def test_labels_of_another_order_are_named_before_they_train(
    ranks: list[dict[str, Any]], name: str
) -> None:
    for said, moved in (rank[name] for rank in ranks):
        assert "different batches" in said
        assert "set of strings" in said
        assert moved == 0.0


@over(["state"], further=())
def test_a_state_that_a_call_changes_is_kept_alike_and_named_once(
    ranks: list[dict[str, Any]],
    name: str,
) -> None:
    seen = {rank[name][0] for rank in ranks}
    assert len(seen) == 1
    (said,) = ranks[0][name][1]
    assert "seen is a state" in said


@over(["unseeded"], further=())
def test_batches_by_hand_that_each_rank_draws_for_itself_are_said_once(
    ranks: list[dict[str, Any]], name: str
) -> None:
    (said,) = ranks[0][name]
    assert "other batches on some ranks, of 8, 8 samples by rank" in said


@over(["draws"], further=())
def test_generators_go_on_alike_where_a_rank_alone_has_drawn(
    ranks: list[dict[str, Any]], name: str
) -> None:
    first, *others = [rank[name] for rank in ranks]
    assert all(other == first for other in others)


@over(["well"], held=HELD, further=())
def test_all_ranks_compare_at_the_same_steps_and_find_nothing_where_all_is_well(
    ranks: list[dict[str, Any]],
    name: str,
) -> None:
    often = {rank[name] for rank in ranks}
    assert len(often) == 1
    assert often.pop() > 2
