"""Replicas that part are found, and what parts them is named."""

from __future__ import annotations

from functools import cache
from typing import Any

import drift_scripts
import pytest

import dream

RANKS = (2, pytest.param(3, marks=pytest.mark.exhaustive))


@cache
def results(ranks: int) -> list[dict[str, Any]]:
    return dream.launch(drift_scripts.run_all, n=ranks, framework="torch", timeout=300)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("rate_by_rank", "lr of group 0 of AdamW, 0.01 on rank 0, 0.015 on rank 1"),
        ("schedule_on_a_local_figure", "lr of group 0 of AdamW, 0.01 on rank 0, 0.005 on rank 1"),
        ("batch_left_out_by_its_own_loss", "gradients of batch 22 on rank 0, 21 on rank 1"),
        ("weight_touched_on_one_rank", "last.bias of Net, rank 1 unlike rank 0, 1 of 4"),
    ],
)
def test_what_parts_them_is_named_on_every_rank(script: str, said: str, ranks: int) -> None:
    for rank in results(ranks):
        assert rank[script].startswith("Desynchronized: ")
        assert said in rank[script]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_step_that_one_rank_leaves_out_is_named_at_once(ranks: int) -> None:
    others = "rank 0" if ranks == 2 else "ranks 0, 1"
    for rank in results(ranks):
        early, late = (rank[f"{at}_left_out_by_one_rank"] for at in ("early_steps", "late_step"))
        assert f"{others}: optimizer.step(); rank {ranks - 1}: loss.backward()" in early
        assert f"of SGD, step 22 on rank 0, {'22 on rank 1, ' * (ranks - 2)}21 on rank" in late


@pytest.mark.parametrize("ranks", RANKS)
def test_a_learning_rate_that_parts_is_found_before_the_next_step(ranks: int) -> None:
    assert {rank["rate_that_parts_late"] for rank in results(ranks)} == {77}


@pytest.mark.parametrize("ranks", RANKS)
def test_comparisons_grow_rare_and_find_nothing_where_all_is_well(ranks: int) -> None:
    often = {rank["all_is_well"] for rank in results(ranks)}
    assert len(often) == 1
    assert often.pop() > 8
    assert {rank["not_a_number_everywhere"] for rank in results(ranks)} == {"well"}


@pytest.mark.parametrize("script", ["buffer_that_forward_changes", "buffer_in_half_precision"])
@pytest.mark.parametrize("ranks", RANKS)
def test_a_buffer_that_forward_changes_is_kept_alike_and_named_once(
    ranks: int, script: str
) -> None:
    (first, lines), *others = [rank[script] for rank in results(ranks)]
    assert any(first)
    assert all(other == first for other, _ in others)
    assert len(lines) == 1
    assert "fixed" not in lines[0]
