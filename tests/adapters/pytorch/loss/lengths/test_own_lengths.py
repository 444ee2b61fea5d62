"""A loop that does something by the number of its batch's rows is told so, with the line."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import own_length_scripts
import pytest

import dream

RANKS = (2, pytest.param(3, marks=pytest.mark.exhaustive))
HERE = Path(own_length_scripts.__file__)


@cache
def heard(ranks: int) -> dict[str, list[str]]:
    first, *_ = dream.launch(own_length_scripts.run_all, n=ranks, framework="torch", timeout=300)
    said: dict[str, list[str]] = first
    return said


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("script", "text", "of"),
    [
        ("gradients_divided", "p.grad.div_(len(x))", "len(x)"),
        ("rate_by_rows", "if seen >= 20", "seen"),
        ("small_batches_left_out", "if x.shape[0] < 12", "x.shape[0]"),
    ],
)
def test_the_line_that_goes_by_it_is_named(script: str, text: str, of: str, ranks: int) -> None:
    line = 1 + HERE.read_text().partition(text)[0].count("\n")
    assert heard(ranks)[script] == [f"{HERE.name}:{line}: `{text}` goes by {of}"]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_loop_that_logs_means_is_told_nothing(ranks: int) -> None:
    assert heard(ranks)["means_logged"] == []
