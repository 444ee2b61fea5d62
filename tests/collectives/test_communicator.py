"""What is more than one call: writing in place, objects, groups, sends, and the textbook's ways."""

from __future__ import annotations

import numpy as np
import pytest
from cells import over
from conftest import Job


@over(3)
def test_out_is_written(job: Job, framework: str, size: int, reduction: str) -> None:
    for same, x, other, array, several in job(framework, size).gave("in_place", reduction):
        assert same
        np.testing.assert_array_equal(x, np.full((2, 2), 6.0))
        np.testing.assert_array_equal(other, np.full((2, 2), 3.0))
        np.testing.assert_array_equal(array, np.full((2, 2), 6.0))
        np.testing.assert_array_equal(several, np.ones((2, 2, 2)))


@over()
def test_objects(job: Job, framework: str, size: int, reduction: str) -> None:
    whole = [{"rank": rank, "text": "x" * rank} for rank in range(size)]
    for rank, found in enumerate(job(framework, size).gave("objects", reduction)):
        gathered, last, at_root, dealt = found
        assert gathered == whole
        assert last == whole[-1]
        assert at_root == (whole if rank == size - 1 else None)
        assert dealt == f"for {rank}"


@over(3, 4)
def test_groups(job: Job, framework: str, size: int, reduction: str) -> None:
    for rank, (groups, after) in enumerate(job(framework, size).gave("groups", reduction)):
        members = [0] if rank == 0 else list(range(1, size))
        mine = groups[0 if rank == 0 else 1]
        assert groups[1 if rank == 0 else 0] is None
        number, count, total, rows, first = mine
        assert (number, count) == (members.index(rank), len(members))
        assert total == [float(sum(members))] * 3
        assert rows == [[member] for member in members for _ in range(member)]
        assert first == [members[0]]
        assert after == [float(size)]


@over(3)
def test_non_blocking(job: Job, framework: str, size: int, reduction: str) -> None:
    for rank, (came, done) in enumerate(job(framework, size).gave("talk", reduction)):
        left = (rank - 1) % size
        assert came == [[10 * left + i] * 4 for i in range(3)]
        assert done


@over(2)
def test_a_send_and_its_receive_differ(job: Job, framework: str, size: int, reduction: str) -> None:
    for said in job(framework, size).gave("unmatched", reduction)[:2]:
        assert said.startswith("Desynchronized"), said
        assert "rank 0 sends float32 (3,), rank 1 expects float32 (4,)" in said


FORMULA = {
    "naive": lambda n, p, rank: n * (p - 1) if rank == 0 else n,
    "ring": lambda n, p, _: 2 * n * (p - 1) // p,
    "halving_doubling": lambda n, p, _: 2 * n * (p - 1) // p,
}


@over(2, 4)
def test_the_algorithms_send_what_the_textbook_says(
    job: Job, framework: str, size: int, reduction: str
) -> None:
    elements = 4096
    found = job(framework, size).gave("algorithms", reduction, elements)
    wanted = size * np.arange(elements, dtype=np.float32) + sum(range(size))
    for rank, by_name in enumerate(found):
        for name, (result, sent) in by_name.items():
            np.testing.assert_array_equal(result, wanted, err_msg=name)
            assert sent == FORMULA[name](4 * elements, size, rank), name


@over(3)
def test_the_algorithms_where_nothing_divides(
    job: Job, framework: str, size: int, reduction: str
) -> None:
    for elements in (1, 2, 1001):
        wanted = size * np.arange(elements, dtype=np.float32) + sum(range(size))
        found = job(framework, size).gave("algorithms", reduction, elements)
        for by_name in found:
            for name, (result, _) in by_name.items():
                np.testing.assert_array_equal(result, wanted, err_msg=name)
        total = sum(by_name["ring"][1] for by_name in found)
        assert total == 2 * 4 * elements * (size - 1)


REFUSED = {
    "op": ("ConfigurationError", "'median'", "product"),
    "mean": ("Unsupported", "int32"),
    "sum_of_bool": ("Unsupported", "bool"),
    "complex_max": ("Unsupported", "complex64"),
    "strings": ("Unsupported",),
    "root": ("ConfigurationError", "root=9"),
    "uneven": ("ConfigurationError", "multiple of"),
    "splits": ("ConfigurationError", "[1]"),
    "parts": ("ConfigurationError", "parts"),
    "algorithm": ("ConfigurationError", "'ring'"),
    "self": ("ConfigurationError", "itself"),
    "twice": ("ConfigurationError", "[0, 0]"),
    "list": ("Unsupported", "str"),
}


@pytest.mark.parametrize("what", REFUSED)
@over(2)
def test_bad_input(job: Job, framework: str, size: int, reduction: str, what: str) -> None:
    for found in job(framework, size).gave("refusals", reduction):
        for word in REFUSED[what]:
            assert word in found[what], found[what]
