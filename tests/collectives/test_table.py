"""Every operation x op x dtype x transport x framework against NumPy, at 2, 3 and 4 ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import calls
import numpy as np
import pytest
from calls import Asked
from cells import over
from conftest import Job
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks_job import Raised, Ranks

TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5, "complex64": 1e-5}
OPERATIONS = (*calls.REDUCING, *calls.MOVING)
LARGE = 100_003


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
@over()
def test_is_numpys(job: Job, framework: str, size: int, reduction: str, operation: str) -> None:
    ranks = job(framework, size)
    wrong = [said for asked in table(operation, ranks) if (said := fault(ranks, reduction, asked))]
    assert not wrong, "\n".join(wrong[:20])


def table(operation: str, ranks: Ranks) -> Iterator[Asked]:
    """Every dtype and op on an ordinary shape, then the odd shapes, layouts and kinds."""
    rows = 2 * ranks.size
    for dtype in calls.DTYPES:
        for op in ops(operation, dtype):
            kind = "numpy" if dtype in ("float64", "int64") else "native"
            yield Asked(operation, dtype, (rows, 3), op, kind=kind, seed=1)
    op = "sum" if operation in calls.REDUCING else None
    base = Asked(operation, "float32", (rows, 3), op, seed=2)
    for shape in ((0, 3), (ranks.size,), (), (1,), (ranks.size * LARGE,)):
        if operation == "reduce_scatter" and shape in ((), (1,)):
            continue
        yield replace(base, shape=shape)
        yield replace(base, shape=shape, kind="numpy", dtype="int16")
    for kind in ("native", "numpy"):
        yield replace(base, kind=kind, layout="strided")
        if operation != "reduce_scatter":
            for shape in ((0,), (1,)):
                yield replace(base, kind=kind, layout="strided", shape=shape)
    yield replace(base, check=False)
    if operation in ("reduce", "broadcast", "gather", "scatter"):
        yield replace(base, root=ranks.size - 1)
    if operation in ("all_gather", "gather", "all_to_all", "scatter"):
        for dtype in ("float32", "int8", "bool"):
            yield replace(base, dtype=dtype, rows=1, root=ranks.size - 1)
        yield replace(base, rows=2, shape=(0, 2), check=False)
    if ranks.framework == "tensorflow" and operation != "send":
        yield from graphs(base)


def graphs(base: Asked) -> Iterator[Asked]:
    for dtype in ("float32", "bfloat16", "int64"):
        yield replace(base, dtype=dtype, where="graph")
    yield replace(base, where="graph", check=False)
    if base.operation in ("all_gather", "gather", "all_to_all", "scatter"):
        yield replace(base, where="graph", rows=1, dtype="uint8")


def ops(operation: str, dtype: str) -> list[str | None]:
    if operation not in calls.REDUCING:
        return [None]
    return [op for op in calls.OPS if calls.meaningful(op, dtype)]


@pytest.mark.slow
@over(3)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_the_shape(
    job: Job, framework: str, size: int, reduction: str, data: st.DataObject
) -> None:
    operation = data.draw(st.sampled_from(OPERATIONS))
    dtype = data.draw(st.sampled_from(calls.DTYPES))
    known = ops(operation, dtype)
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4).map(tuple))
    if operation == "reduce_scatter":
        shape = (size * data.draw(st.integers(0, 3)), *shape)
    asked = Asked(
        operation,
        dtype,
        shape,
        data.draw(st.sampled_from(known)) if known else None,
        root=data.draw(st.integers(0, size - 1)),
        kind=data.draw(st.sampled_from(("native", "numpy"))),
        layout=data.draw(st.sampled_from(("plain", "strided"))),
        rows=data.draw(st.integers(0, 3)) if operation in ("all_gather", "gather") else 0,
        seed=data.draw(st.integers(0, 99)),
    )
    said = fault(job(framework, size), reduction, asked)
    assert not said, said


def fault(ranks: Ranks, reduction: str, asked: Asked) -> str:
    """What is wrong with a call's results; empty where nothing is."""
    found = ranks.outcomes("call", reduction, asked)
    for rank, (one, wanted) in enumerate(
        zip(found, calls.expected(asked, ranks.size), strict=True)
    ):
        if isinstance(one, Raised):
            return f"{asked}: rank {rank} raised {one.kinds[0]}: {one.message}"
        result, kind, unchanged = one
        said = difference(result, wanted, asked.dtype)
        if said or not kind or not unchanged:
            return f"{asked}: rank {rank}: {said} kind={kind} unchanged={unchanged}"
    return ""


def difference(result: np.ndarray | None, wanted: np.ndarray | None, dtype: str) -> str:
    if result is None or wanted is None:
        return "" if result is wanted else f"{result} in place of {wanted}"
    if result.dtype != wanted.dtype or result.shape != wanted.shape:
        return f"{result.dtype}{result.shape} in place of {wanted.dtype}{wanted.shape}"
    tolerance = TOLERANCE.get(dtype, 1e-12)
    wide = np.complex128 if dtype.startswith("complex") else np.float64
    close = np.allclose(result.astype(wide), wanted.astype(wide), rtol=tolerance, atol=0)
    return "" if close else f"{result.ravel()[:6]} in place of {wanted.ravel()[:6]}"
