"""Keras's replicas that part are found, what parts them is named, and what can go on alike does."""

from __future__ import annotations

from typing import Any

import pytest
from keras_launching import CELLS, Cell, call

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[c for c in CELLS if c.devices == 1], ids=str)
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    cell: Cell = request.param
    return call(cell, "keras_drift", "run_all")


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("weight", "last/bias, rank 1 unlike rank 0, 1 of 2 parameters"),
        ("weight by hand", "last/bias, rank 1 unlike rank 0, 1 of 2 parameters"),
        ("last step", "last/bias, rank 1 unlike rank 0, 1 of 2 parameters"),
        ("rate", "learning_rate of SGD, 0.05"),
        ("rate from the start", "learning_rate of SGD, 0.05"),
    ],
)
def test_what_parts_replicas_is_named_on_every_rank(
    ranks: list[dict[str, Any]], way: str, said: str
) -> None:
    for rank in ranks:
        assert rank[way].startswith("Desynchronized: ")
        assert said in rank[way]


def test_labels_of_another_order_are_named_before_they_train(ranks: list[dict[str, Any]]) -> None:
    for said, moved in (rank["labels"] for rank in ranks):
        assert "different batches" in said
        assert "set of strings" in said
        assert moved == 0.0


def test_a_state_that_a_call_changes_is_kept_alike_and_named_once(
    ranks: list[dict[str, Any]],
) -> None:
    seen = {rank["state"][0] for rank in ranks}
    assert len(seen) == 1
    (said,) = ranks[0]["state"][1]
    assert "seen is a state" in said


def test_generators_go_on_alike_where_a_rank_alone_has_drawn(ranks: list[dict[str, Any]]) -> None:
    first, *others = [rank["draws"] for rank in ranks]
    assert all(other == first for other in others)


def test_all_ranks_compare_at_the_same_steps_and_find_nothing_where_all_is_well(
    ranks: list[dict[str, Any]],
) -> None:
    often = {rank["well"] for rank in ranks}
    assert len(often) == 1
    assert often.pop() > 2
