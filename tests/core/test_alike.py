"""Ranks that have come to different places of training are told which."""

from __future__ import annotations

import pytest

from dream import Desynchronized
from dream.data.alike import of_one_place


def test_what_ranks_say_at_one_place_comes_back() -> None:
    assert of_one_place([("at the end of an epoch", 1), ("at the end of an epoch", 2)]) == [1, 2]


@pytest.mark.parametrize("other", [[2611535395, 7], [1, 2, 3], (True, None), 5])
def test_a_rank_in_a_call_of_another_kind_is_named(other: object) -> None:
    with pytest.raises(Desynchronized, match="rank 0 at the end of an epoch, rank 1 in another"):
        of_one_place([("at the end of an epoch", 1), other])  # type: ignore[list-item]
