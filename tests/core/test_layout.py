"""A model that differs between ranks is named by rank and parameter."""

from __future__ import annotations

from typing import Any

import pytest

from dream import Desynchronized
from dream.model_description.layout import check_same

WEIGHT = ("weight", (3, 2), "float32")
BIAS = ("bias", (3,), "float32")


def test_equal_layouts_pass() -> None:
    check_same([[WEIGHT, BIAS]] * 3)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ([WEIGHT, ("bias", (4,), "float32")], r"bias float32\[3\] on rank 0, bias float32\[4\]"),
        ([WEIGHT, ("bias", (3,), "float64")], r"float32\[3\] on rank 0, bias float64\[3\]"),
        ([WEIGHT, ("gain", (3,), "float32")], r"bias .* on rank 0, gain .* on rank 2"),
        ([WEIGHT], "bias .* on rank 0, no further parameter on rank 2"),
        ([WEIGHT, BIAS, BIAS], "no further parameter on rank 0, bias .* on rank 2"),
    ],
)
def test_the_first_difference_is_named(
    other: list[tuple[str, tuple[int, ...], str]], said: str
) -> None:
    with pytest.raises(Desynchronized, match=said):
        check_same([[WEIGHT, BIAS], [WEIGHT, BIAS], other])


@pytest.mark.parametrize("told", [{"step": 3}, "an epoch's end", [1, 2], None])
def test_a_rank_that_tells_something_else_is_named(told: Any) -> None:
    with pytest.raises(Desynchronized, match=r"at different points .* from rank 1"):
        check_same([[WEIGHT, BIAS], told])
