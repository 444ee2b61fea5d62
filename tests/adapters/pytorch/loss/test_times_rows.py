"""A mean that is multiplied by a rank's number of rows is noticed; one by a fixed number is not,
where a share comes to have as many."""

from __future__ import annotations

from dream.adapters.pytorch.loss.divisors import times_the_rows
from dream.data.partition import Division


def test_a_number_that_was_there_with_other_rows_is_none_of_them() -> None:
    large, small = Division(2).share(10, 0), Division(2).share(6, 0)
    fixed: set[float] = set()
    assert not times_the_rows([1 / 3], large, fixed)
    assert not times_the_rows([1 / 3], small, fixed)


def test_a_number_that_follows_the_rows_is() -> None:
    large, small = Division(2).share(22, 0), Division(2).share(26, 0)
    fixed: set[float] = set()
    assert times_the_rows([1 / 11], large, fixed)
    assert times_the_rows([1 / 13], small, fixed)
