"""Which rank writes what: every rank finds the same, asking in the same order."""

from __future__ import annotations

import numpy as np

from dream.checkpoint.storage.allotment import Allotment

KIND = "model.safetensors"
SIZES = {"a": 40, "b": 40, "c": 100, "d": 40, "e": 40, "f": 20}


def dealt(ranks: int, **limits: int) -> list[dict[str, list[str]]]:
    """Return by rank the arrays of each of its files."""
    found = []
    for rank in range(ranks):
        allotment = Allotment(rank, ranks, **limits)
        mine = {n: np.zeros(s, np.int8) for n, s in SIZES.items() if allotment.takes(KIND, n, s)}
        own = {file: [*arrays] for file, arrays in allotment.own(KIND, mine)}
        assert sorted(name for names in own.values() for name in names) == sorted(mine)
        index = allotment.index(KIND)
        if index is not None:
            assert index[0] == sum(SIZES.values())
            assert {n for n, file in index[1].items() if file in own} == {*mine}
        found.append(own)
    return found


def test_little_is_one_ranks() -> None:
    assert dealt(3, least=1000) == [{KIND: [*SIZES]}, {}, {}]


def test_much_is_shared_out_evenly() -> None:
    first, second = dealt(2, least=40)
    assert first == {"model-00001-of-00002.safetensors": ["a", "c"]}
    assert second == {"model-00002-of-00002.safetensors": ["b", "d", "e", "f"]}


def test_a_rank_whose_share_is_large_writes_several_files() -> None:
    first, second = dealt(2, least=40, largest=100)
    assert [*first.values()] == [["a"], ["c"]]
    assert [*second.values()] == [["b", "d"], ["e", "f"]]
    assert len({*first, *second}) == 4


def test_what_has_no_arrays_has_a_file() -> None:
    assert [*Allotment(0, 2).own(KIND, {})] == [(KIND, {})]
    assert not [*Allotment(1, 2).own(KIND, {})]


def test_a_rank_that_writes_nothing_but_an_empty_array_writes() -> None:
    """Left out of the writers, its file was named in the index, and written by nobody."""
    for rank in range(2):
        allotment = Allotment(rank, 2, least=40)
        taken = [allotment.takes(KIND, name, size) for name, size in (("a", 40), ("none", 0))]
        assert taken == [rank == 0, rank == 1]
        assert allotment.writers == range(2)
        assert allotment.names([KIND]) == {
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        }


def test_who_alone_has_an_array_writes_it() -> None:
    """However little it is; the others go on to be dealt out."""
    found = []
    for rank in range(3):
        allotment = Allotment(rank, 3, least=1000)
        takes = [allotment.takes(KIND, f"{owner}", 10, owner) for owner in (2, 0, 2, None)]
        assert allotment.writers == range(3)
        found.append(takes)
    assert found == [
        [False, True, False, False],
        [False, False, False, True],
        [True, False, True, False],
    ]
