"""Whatever the dtype, operation and length, the result is NumPy's, in the same bits everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import native_job
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_calls import Asked, expected

from dream.shared_memory import CARRIES, OPERATIONS, status

pytestmark = pytest.mark.skipif(status().path is None, reason=status().why)
SIZES = (1, 2, 3, 4)
THERE = ("reduce_there", "scatter_there")
KINDS = ("all_reduce", "reduce_scatter", *THERE, "broadcast", "all_gather", "all_to_all")
SLOT = 512 * 1024
DIRECT = 32 * 1024
LENGTHS = (0, 1, 2, 3, 17, 1023, 1025, 8191, 8192, 8193, 65537)
Find = Callable[[int], native_job.Job]


@pytest.fixture(scope="module")
def jobs() -> Iterator[Find]:
    with ExitStack() as up:
        made: dict[int, native_job.Job] = {}

        def find(size: int) -> native_job.Job:
            if size not in made:
                made[size] = up.enter_context(native_job.job(size))
                assert made[size].gave("connect", "calls") == [(n, size) for n in range(size)]
            return made[size]

        yield find


def check(job: native_job.Job, asked: Asked) -> None:
    for rank, found in enumerate(job.gave("call", asked)):
        wanted = expected(asked, rank, job.size)
        assert found.dtype == wanted.dtype
        assert found.tobytes() == wanted.tobytes(), (asked, rank, _first(found, wanted))


def _first(found: np.ndarray, wanted: np.ndarray) -> object:
    at = int(np.flatnonzero(found != wanted)[:1].sum())
    return at, found[at : at + 4], wanted[at : at + 4]


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("dtype", CARRIES)
@pytest.mark.parametrize("size", SIZES)
def test_reductions(jobs: Find, size: int, dtype: str, op: str) -> None:
    if op == "mean" and dtype.startswith("int"):
        pytest.skip("integers have no mean")
    for length in LENGTHS:
        check(jobs(size), Asked("all_reduce", length, dtype, op, in_place=length % 2 == 0))
    for length in (0, 1, 1025, 40000):
        check(jobs(size), Asked("reduce_scatter", length, dtype, op))
        for kind in THERE:
            check(jobs(size), Asked(kind, length, dtype, op))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_around_the_borders_of_slots(jobs: Find, size: int, dtype: str) -> None:
    """Of a slot, of several, of what is added up at once, and of the least chunk."""
    width = np.dtype(dtype).itemsize
    for whole in (DIRECT, 64 * 1024, SLOT, 4 * SLOT, 5 * SLOT):
        for length in (whole // width + off for off in (-1, 0, 1)):
            check(jobs(size), Asked("all_reduce", length, dtype, "mean", in_place=True))
            check(jobs(size), Asked("all_gather", length, dtype))


@pytest.mark.parametrize("dtype", ["bytes", "float16", "float32", "int64"])
@pytest.mark.parametrize("size", SIZES)
def test_moves(jobs: Find, size: int, dtype: str) -> None:
    for length in (*LENGTHS, 150_001):
        for root in {0, size - 1}:
            check(jobs(size), Asked("broadcast", length, dtype, root=root))
        check(jobs(size), Asked("all_gather", length, dtype))
        check(jobs(size), Asked("all_to_all", length, dtype))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_in_any_order(jobs: Find, data: st.DataObject) -> None:
    size = data.draw(st.sampled_from(SIZES[1:]))
    kind = data.draw(st.sampled_from(KINDS))
    op = data.draw(st.sampled_from(sorted(OPERATIONS)))
    dtypes = [name for name in CARRIES if op != "mean" or "float" in name]
    asked = Asked(
        kind,
        data.draw(st.integers(0, 200_000)),
        data.draw(st.sampled_from(dtypes)),
        op,
        root=data.draw(st.integers(0, size - 1)),
        in_place=kind == "all_reduce" and data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 99)),
    )
    check(jobs(size), asked)


def test_half_precision_is_rounded_once_to_the_nearest(jobs: Find) -> None:
    """Every half, and a nan stays one."""
    job = jobs(2)
    for found in job.gave("halves"):
        assert found == "as NumPy has them"


def test_of_a_nan_nothing_else_is_left(jobs: Find) -> None:
    for found in jobs(3).gave("nans"):
        assert found == [["nan", "nan", "nan"]] * 4


@pytest.mark.parametrize("size", [2, 3])
def test_the_same_bits_everywhere_whatever_they_mean(jobs: Find, size: int) -> None:
    """Nans of many kinds among them, at addresses of many kinds."""
    for found in zip(*jobs(size).gave("any_bits"), strict=True):
        assert len(set(found)) == 1


@pytest.mark.parametrize("size", [2, 4])
def test_again_the_same_bits(jobs: Find, size: int) -> None:
    """What is added up in another order differs in the last bits."""
    asked = Asked("all_reduce", 100_003, "float32", "sum")
    found = {x.tobytes() for _ in range(5) for x in jobs(size).gave("call", asked)}
    assert len(found) == 1


@pytest.mark.parametrize("size", [2, 3])
def test_who_waits_uses_no_core(jobs: Find, size: int) -> None:
    job, early = jobs(size), range(size - 1)
    job.gave("on_cores_of_their_own")
    job.ask("seconds_of_waiting", ranks=early)
    for rank in early:
        assert job.answer(rank) == "waits"
    job.ask("barrier", ranks=[size - 1])
    job.answer(size - 1)
    waited = [job.answer(rank) for rank in early]
    job.gave("on_any_core")
    for seconds, used in waited:
        assert used < 0.1 + seconds / 20, "a tenth of a second to begin with, then looks in between"
