"""A script whose model is split learns what it learns without dream, whatever its loss is."""

from __future__ import annotations

import pytest
from split_losses import RANKS, SCRIPTS, STEPS, found

pytestmark = pytest.mark.slow
MIXED = ("sum_and_penalty", "two_loaders")
"""Terms that count for different things, whose values backward does not know apart."""


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_split_script_learns_what_it_learns_alone(script: str, ranks: int) -> None:
    for what, figures in _of(script, ranks):
        assert figures.get("state", 1.0) <= 1e-6, (what, figures)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("script", [n for n in SCRIPTS if n not in MIXED])
def test_a_loss_after_its_backward_is_the_global_one(script: str, ranks: int) -> None:
    for what, figures in _of(script, ranks):
        assert figures.get("told", 1.0) <= 1e-6, (what, figures)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("loss", STEPS)
def test_an_explicit_step_learns_what_a_loop_learns_alone(loss: str, ranks: int) -> None:
    cases = _of(loss, ranks)
    assert cases
    for what, figures in cases:
        assert figures.get("state", 1.0) <= 1e-6, (what, figures)
        assert loss == "step: two_kinds" or figures.get("told", 1.0) <= 1e-6, (what, figures)


def _of(script: str, ranks: int) -> list[tuple[str, dict[str, float]]]:
    return [
        (what, figures)
        for rank in found(ranks)
        for what, figures in rank.items()
        if what.startswith(f"{script}: ")
    ]
