"""The mesh multiplies out to the replicas, and says who is whose neighbour."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as draw

from dream import ConfigurationError
from dream._topology import Mesh

SIZES = draw.integers(1, 6)


@given(SIZES, SIZES)
def test_every_rank_is_in_one_copy_and_one_row_of_twins(data: int, model: int) -> None:
    mesh = Mesh(data, model)
    for rank in range(mesh.size):
        assert {*mesh.copy_of(rank)} & {*mesh.twins_of(rank)} == {rank}
        assert len(mesh.copy_of(rank)) == model
        assert len(mesh.twins_of(rank)) == data
        assert mesh.copy_of(rank)[mesh.model_index(rank)] == rank
        assert mesh.twins_of(rank)[mesh.data_index(rank)] == rank


def test_an_axis_that_is_not_given_takes_what_is_left() -> None:
    assert Mesh.fit(4, data=None, model=2, spare="data") == Mesh(2, 2)
    assert Mesh.fit(4, data=2, model=None, spare="data") == Mesh(2, 2)
    assert Mesh.fit(4, data=None, model=None, spare="data") == Mesh(4, 1)
    assert Mesh.fit(4, data=None, model=None, spare="model") == Mesh(1, 4)


@pytest.mark.parametrize(
    ("data", "model", "words"),
    [
        (2, 3, "data 2 x model 3 = 6, replicas 4"),
        (None, 3, "data 1 x model 3 = 3, replicas 4"),
        (8, None, "data 8 x model 1 = 8, replicas 4"),
    ],
)
def test_what_does_not_multiply_out_shows_the_equation(
    data: int | None, model: int | None, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Mesh.fit(4, data=data, model=model, spare="data")
