"""One call as the tests ask for it, what each rank gives to it, and what NumPy makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

try:
    from ml_dtypes import bfloat16
except ImportError:  # comes with TensorFlow
    bfloat16 = np.float32

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
COMPLEX = ("complex64", "complex128")
DTYPES = (*FLOATS, *INTEGERS, "bool", *COMPLEX)
OPS = ("sum", "mean", "min", "max", "product")
WIDE = {"float16": "float32", "bfloat16": "float32"}
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
MOVING = ("broadcast", "all_gather", "gather", "scatter", "all_to_all", "send")
_COMBINE = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum,
            "product": np.multiply}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What the ranks are to do, all alike.

    kind: the caller's: "native" or "numpy". where: "eager" or "graph".
    rows: by how many rows each rank's input is longer than that of the rank before.
    layout: "plain", or "strided": not contiguous.
    """

    operation: str
    dtype: str
    shape: tuple[int, ...]
    op: str | None = None
    root: int = 0
    kind: str = "native"
    where: str = "eager"
    rows: int = 0
    layout: str = "plain"
    check: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


def numpy_dtype(name: str) -> Any:
    return bfloat16 if name == "bfloat16" else np.dtype(name)


def meaningful(op: str, dtype: str) -> bool:
    if dtype in COMPLEX:
        return op in ("sum", "mean")
    if dtype == "bool":
        return op in ("min", "max")
    return op != "mean" or dtype in FLOATS


def given(asked: Asked, rank: int) -> np.ndarray:
    """A rank's input."""
    draw = np.random.default_rng([asked.seed, rank])
    shape = asked.shape
    if asked.rows and shape:
        shape = (shape[0] + rank * asked.rows, *shape[1:])
    if asked.dtype == "bool":
        return np.asarray(draw.random(shape) > 0.5)
    if asked.dtype in INTEGERS:
        return np.asarray(draw.integers(0 if asked.dtype == "uint8" else -9, 9, shape)).astype(
            asked.dtype
        )
    values = np.asarray(draw.uniform(0.5, 2.0, shape))
    if asked.dtype in COMPLEX:
        values = values + 1j * draw.normal(size=shape)
    return np.asarray(values).astype(numpy_dtype(asked.dtype))


def parts(asked: Asked, rank: int, size: int) -> list[np.ndarray]:
    """What a rank deals out: one array for each rank, of differing rows where `rows` is set."""
    return [
        given(
            Asked(
                asked.operation,
                asked.dtype,
                (asked.shape[0] + asked.rows * to, *asked.shape[1:]) if asked.shape else (),
                seed=asked.seed * 100 + to,
            ),
            rank,
        )
        for to in range(size)
    ]


def combined(arrays: list[np.ndarray], op: str, dtype: str) -> np.ndarray:
    """In the wider dtype where the ranks use one, and rounded once."""
    wide = [array.astype(WIDE.get(dtype, array.dtype)) for array in arrays]
    result = reduce(_COMBINE[op], wide)
    if op == "mean":
        result = result / len(arrays)
    return np.asarray(result).astype(arrays[0].dtype)


def expected(asked: Asked, size: int) -> list[np.ndarray | None]:
    """What each rank must end with."""
    if asked.operation in ("scatter", "all_to_all"):
        return _dealt(asked, size)
    arrays = [given(asked, rank) for rank in range(size)]
    root = asked.root
    if asked.operation in REDUCING:
        whole = combined(arrays, asked.op or "mean", asked.dtype)
        if asked.operation == "reduce_scatter":
            return list(np.split(whole, size))
        return [whole if asked.operation == "all_reduce" or rank == root else None
                for rank in range(size)]  # fmt: skip
    if asked.operation == "broadcast":
        return [arrays[root]] * size
    if asked.operation == "send":  # round the ring
        return [arrays[rank - 1] for rank in range(size)]
    whole = np.concatenate([np.atleast_1d(array) for array in arrays])
    return [whole if asked.operation == "all_gather" or rank == root else None
            for rank in range(size)]  # fmt: skip


def _dealt(asked: Asked, size: int) -> list[np.ndarray | None]:
    if asked.operation == "scatter":
        return list(parts(asked, asked.root, size))
    table = [parts(asked, rank, size) for rank in range(size)]
    return [
        np.concatenate([np.atleast_1d(table[source][rank]) for source in range(size)])
        for rank in range(size)
    ]
