"""A script whose model is split learns what it learns without dream, whatever its loss is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from split_losses import FEW, FEW_STEPS, SCRIPTS, STEPS, found

pytestmark = pytest.mark.slow
MIXED = ("sum_and_penalty", "two_loaders")
"""Terms that count for different things, whose values backward does not know apart."""
AGAIN = pytest.mark.exhaustive


def _cases(names: Iterable[str]) -> list[Any]:
    """Of scripts, by the job that runs them."""
    others = ((name, "2, others") for name in names if name not in FEW)
    more = [*others, *((name, ranks) for name in names for ranks in "34")]
    return [*((name, "2") for name in names), *(pytest.param(*each, marks=AGAIN) for each in more)]


STEPPED = [
    *((step, "2") for step in STEPS),
    *(pytest.param(n, "2, others", marks=AGAIN) for n in STEPS if n not in FEW_STEPS),
    *(pytest.param(n, "4", marks=AGAIN) for n in STEPS),
]


@pytest.mark.parametrize(("script", "job"), _cases(SCRIPTS))
def test_a_split_script_learns_what_it_learns_alone(script: str, job: str) -> None:
    for what, figures in _of(script, job):
        assert figures.get("state", 1.0) <= 1e-6, (what, figures)


@pytest.mark.parametrize(("script", "job"), _cases([n for n in SCRIPTS if n not in MIXED]))
def test_a_loss_after_its_backward_is_the_global_one(script: str, job: str) -> None:
    for what, figures in _of(script, job):
        assert figures.get("told", 1.0) <= 1e-6, (what, figures)


@pytest.mark.parametrize(("loss", "job"), STEPPED)
def test_an_explicit_step_learns_what_a_loop_learns_alone(loss: str, job: str) -> None:
    for what, figures in _of(loss, job):
        assert figures.get("state", 1.0) <= 1e-6, (what, figures)
        assert loss == "step: two_kinds" or figures.get("told", 1.0) <= 1e-6, (what, figures)


def _of(script: str, job: str) -> list[tuple[str, dict[str, float]]]:
    cases = [
        (what, figures)
        for rank in found(job)
        for what, figures in rank.items()
        if what.startswith(f"{script}: ")
    ]
    assert cases
    return cases
