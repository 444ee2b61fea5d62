"""A call that ranks make together: what each brings, and what NumPy says that each should get."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce
from math import ceil
from typing import Any

import numpy as np

POOL = 70_001


@dataclass(frozen=True)
class Asked:
    """count: elements; a rank's own vary with it where a call allows that."""

    kind: str
    count: int
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    in_place: bool = False
    seed: int = 0

    def counts(self, size: int) -> list[int]:
        """all_gather's: uneven, the second none."""
        return [0 if rank == 1 and size > 2 else self.count + rank for rank in range(size)]

    def flow(self, source: int, target: int) -> int:
        """all_to_all's."""
        return self.count * ((source + 2 * target) % 3)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """bfloat16 is kept as its bits."""
    return np.dtype("uint16" if name == "bfloat16" else "uint8" if name == "bytes" else name)


def given(asked: Asked, rank: int, size: int) -> np.ndarray:
    lengths = {
        "reduce_scatter": asked.count * size,
        "all_gather": asked.counts(size)[rank],
        "all_to_all": sum(asked.flow(rank, other) for other in range(size)),
    }
    return _drawn(asked, rank, lengths.get(asked.kind, asked.count))


def buffer_of(asked: Asked, rank: int, size: int) -> np.ndarray:
    """Where the result goes. broadcast: with what the rank brings."""
    if asked.kind == "broadcast":
        return given(asked, rank, size)
    lengths = {
        "all_gather": sum(asked.counts(size)),
        "all_to_all": sum(asked.flow(other, rank) for other in range(size)),
    }
    return np.zeros(lengths.get(asked.kind, asked.count), numpy_dtype(asked.dtype))


def expected(asked: Asked, rank: int, size: int) -> np.ndarray:
    brought = [given(asked, one, size) for one in range(size)]
    match asked.kind:
        case "all_reduce" | "reduce_there":
            return joined(asked, brought)
        case "scatter_there":
            own = own_part(asked, rank, size)
            result = brought[rank].copy()
            result[own] = joined(asked, brought)[own]
            return result
        case "reduce_scatter":
            return joined(asked, brought)[rank * asked.count : (rank + 1) * asked.count]
        case "broadcast":
            return brought[asked.root]
        case "all_gather":
            return np.concatenate(brought)
    parts = []
    for one, whole in enumerate(brought):
        start = sum(asked.flow(one, other) for other in range(rank))
        parts.append(whole[start : start + asked.flow(one, rank)])
    return np.concatenate(parts)


def own_part(asked: Asked, rank: int, size: int) -> slice:
    """Whole lines of 64 bytes."""
    line = 64 // numpy_dtype(asked.dtype).itemsize
    each = ceil(ceil(asked.count / size) / line) * line
    return slice(rank * each, (rank + 1) * each)


def joined(asked: Asked, brought: list[np.ndarray]) -> np.ndarray:
    """Every rank's in order, half precision in float32 and rounded once."""
    wide = [widened(asked.dtype, x) for x in brought]
    functions = {"min": np.minimum, "max": np.maximum, "product": np.multiply}
    with np.errstate(all="ignore"):
        total = reduce(functions.get(asked.op, np.add), wide)
        if asked.op == "mean":
            total = total / total.dtype.type(len(brought))
        return narrowed(asked.dtype, total)


def widened(dtype: str, x: np.ndarray) -> np.ndarray:
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32) if dtype == "float16" else x


def narrowed(dtype: str, x: np.ndarray) -> np.ndarray:
    if dtype != "bfloat16":
        return x.astype(numpy_dtype(dtype))
    bits = x.view(np.uint32).astype(np.uint64)
    nan = (bits >> 16) | 0x40
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), nan, rounded).astype(np.uint16)


def same_halves(dtype: str, found: np.ndarray, wanted: np.ndarray) -> bool:
    """The same bits, or both a nan. found, wanted: bits."""
    most = 0x7C00 if dtype == "float16" else 0x7F80
    nans = (found & 0x7FFF) > most
    return bool(np.array_equal(nans, (wanted & 0x7FFF) > most)) and bool(
        np.array_equal(found[~nans] & 0x7FFF, wanted[~nans] & 0x7FFF)
    )


def _drawn(asked: Asked, rank: int, length: int) -> np.ndarray:
    """Of a pool, from a place that depends on who draws."""
    pool = _pool(asked.dtype)
    start = (asked.seed * 7919 + rank * 30011 + length) % POOL
    return np.resize(np.concatenate([pool[start:], pool[:start]]), length)


@cache
def _pool(dtype: str) -> np.ndarray:
    """Any bits that are a number; integers may overflow, floats may be tiny or huge."""
    draw, kind = np.random.default_rng(0), numpy_dtype(dtype)
    if dtype in ("int32", "int64", "bytes"):
        limits = np.iinfo(kind)
        return draw.integers(limits.min, limits.max, POOL, kind, endpoint=True)
    floats = draw.standard_normal(POOL) * 2.0 ** draw.integers(-20, 12, POOL)
    if dtype == "bfloat16":
        return narrowed("bfloat16", floats.astype(np.float32))
    return floats.astype(kind)
