"""One copy of the weights a host: the bits of replicas of their own, and nothing in silence."""

from __future__ import annotations

from functools import cache
from typing import Any

import one_copy_scripts
import pytest

import dream


@cache
def results() -> list[dict[str, Any]]:
    return dream.launch(one_copy_scripts.everything, n=2, framework="torch", timeout=300)


@pytest.mark.parametrize("case", [*one_copy_scripts.MAKES, "accumulate", "shares", "checkpoint"])
def test_ten_uneven_steps_end_at_the_same_bits(case: str) -> None:
    assert [rank[case] for rank in results()] == ["", ""]


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [3, 4])
def test_of_more_ranks_too(ranks: int) -> None:
    found = dream.launch(one_copy_scripts.some, n=ranks, framework="torch", timeout=300)
    assert found == [""] * ranks


def test_parameters_and_state_lie_once() -> None:
    assert [rank["memory"] for rank in results()] == [[True] * 3] * 2


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("loop_untouched", "Make step = strategy.train_step(model, loss, optimizer)"),
        ("step_by_hand", "Received: AdamW.step() in the loop"),
        ("written_outside", "A parameter was written outside the update"),
        ("part_of_a_model", "Received: 3 of its parameters that SGD does not step"),
        ("another_optimizer", "Received: LBFGS. Use one of SGD, Adam,"),
        ("no_room", "There is no memory for the ranks to share. Received: "),
        ("over gloo", "Received: reduction='gloo'. Leave one_copy out."),
        ("clipped", "One copy of the weights cannot honour this option. Received: clip_norm=1.0"),
        ("buckets", "Received: bucket_mb=5"),
    ],
)
def test_what_would_be_another_model_is_refused_on_every_rank(act: str, said: str) -> None:
    for rank in results():
        assert said in rank[act]


def test_one_rank_trains_as_ever_and_a_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "dream"), dream.strategy("mirrored", one_copy=True) as strategy:
        _, _, step = one_copy_scripts.start(strategy)
        one_copy_scripts.run(step, 1)
    assert "there is one rank" in caplog.text
