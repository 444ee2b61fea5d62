"""A request to leave comes to one rank while no step ends: in an evaluation, the last one too, as
the first step is compiled, in a loader's wait, in a sleep. All ranks save together and leave all
the same. `checkpoint_asked.py` asks at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from checkpoint_asked import HOW, KINDS, STATES, Weights, asked, difference, left, trained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Weights]:
    """By framework, the weights of a training that nobody asked to leave."""
    return cache(lambda kind: trained(kind, tmp_path_factory.mktemp(kind)))


@pytest.mark.exhaustive
def test_asked_in_the_last_evaluation(tmp_path: Path) -> None:
    job = asked("torch", "end", "SIGTERM", random.Random(1), tmp_path)
    assert left(job), job.stderr


CASES = [(kind, state, how) for kind in KINDS for state, how in zip(STATES, HOW * 2, strict=False)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "state", "how"), CASES)
def test_asked_where_no_step_ends(
    kind: str, state: str, how: str, tmp_path: Path, undisturbed: Callable[[str], Weights]
) -> None:
    """It starts again, and ends with the weights of a training that was left alone."""
    job = asked(kind, state, how, random.Random(1), tmp_path)
    assert left(job), job.stderr
    assert difference(trained(kind, tmp_path), undisturbed(kind)) < 1e-6
