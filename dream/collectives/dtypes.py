"""What may be added up, and what it travels in."""

from __future__ import annotations

from dream._errors import Unsupported
from dream.collectives.wire import Op

CARRIED = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
    "complex64": "float32",
    "complex128": "float64",
    "bool": "int32",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "int32": "int32",
    "uint32": "int64",
    "int64": "int64",
}
"""A tensor's dtype -> the one that a wire adds it up in. Half precision is added up in float32
and rounded once; small integers wrap around as they would in their own dtype."""

SIZES = {name: int("".join(filter(str.isdigit, name)) or "8") // 8 for name in [*CARRIED, "uint64"]}
"""Bytes of an element, of all that can be moved."""


def carried(op: Op, dtype: str) -> str:
    """The dtype in which `op` is done; `Unsupported` where there is no such thing."""
    if dtype not in CARRIED:
        raise Unsupported(
            f"This dtype is not added up between ranks. Received: op={op!r}, {dtype}. Cast it to "
            f"one of: {', '.join(CARRIED)}."
        )
    if _meaningless(op, dtype):
        raise Unsupported(
            f"There is no {op} of this dtype. Received: op={op!r}, {dtype}. Cast it first, to a "
            f"{'float' if op == 'mean' else 'number'}."
        )
    return CARRIED[dtype]


def _meaningless(op: Op, dtype: str) -> bool:
    if dtype.startswith("complex"):
        return op not in ("sum", "mean")
    if dtype == "bool":
        return op in ("sum", "mean", "product")
    return op == "mean" and "float" not in dtype


def check_moves(dtype: str) -> None:
    """`Unsupported` where a dtype cannot go from rank to rank."""
    if dtype not in SIZES:
        raise Unsupported(
            f"This dtype does not travel between ranks. Received: {dtype}. Cast it to one of: "
            f"{', '.join(SIZES)}."
        )
