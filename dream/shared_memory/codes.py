"""The core's numbers for dtypes, operations and outcomes: those of native/dream_shared.h."""

from __future__ import annotations

from enum import IntEnum, unique

DTYPES = {
    "bytes": 0,
    "float16": 1,
    "bfloat16": 2,
    "float32": 3,
    "float64": 4,
    "int32": 5,
    "int64": 6,
}
"""What is moved. "bytes" stands for any dtype, by its size."""

CARRIES = tuple(name for name in DTYPES if name != "bytes")
"""What is added up. Half precision is added up in float32 and rounded once."""

OPERATIONS = {"sum": 0, "mean": 1, "min": 2, "max": 3, "product": 4}

KINDS = {
    0: "nothing",
    1: "barrier",
    2: "all_reduce",
    3: "reduce_scatter",
    4: "broadcast",
    5: "all_gather",
    6: "all_to_all",
}


@unique
class Code(IntEnum):
    """What a call comes to."""

    DONE = 0
    AGAIN = 1
    MISMATCH = 2
    GONE = 3
    STALLED = 4
    LEFT = 5
    BUSY = 6
    BAD_ARGUMENT = 7
    BAD_MEMORY = 8
    SYSTEM = 9
