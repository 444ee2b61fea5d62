"""What messages have in common."""

from __future__ import annotations

import pytest

from dream._errors import listed


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ((4, 1), "ranks 1, 4"),
        (range(8), "ranks 0, 1, 2, 3, 4, 5, 6, 7"),
        (range(1, 200), "ranks 1-199"),
        ([0, 2, *range(5, 99), 120], "ranks 0, 2, 5-98, 120"),
    ],
)
def test_hundreds_of_ranks_are_not_told_one_by_one(ranks: list[int], words: str) -> None:
    assert listed(ranks) == words
