"""The core's numbers for dtypes, operations and outcomes, as in native/dream_shared.h; and what
each failure is in dream's errors."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, unique

from dream._errors import ConfigurationError, Desynchronized, DreamError, WorkerFailed
from dream.collectives.board import Call, absence, departure, disagreement
from dream.shared_memory.library import Signature

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
    7: "reduce_there",
    8: "scatter_there",
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


_DTYPES = {code: name for name, code in DTYPES.items()}
_OPERATIONS = {code: name for name, code in OPERATIONS.items()}
_REDUCE, _BROADCAST, _MOVES = (2, 3, 7, 8), 4, (5, 6)


def in_words(said: Signature) -> str:
    """`all_reduce(op='sum') of float32 (2,)`; empty for no call."""
    if not said.kind:
        return ""
    kind, of = KINDS[said.kind], f" of {_DTYPES[said.dtype]}"
    if said.kind in _REDUCE:
        return f"{kind}(op={_OPERATIONS[said.op]!r}){of} ({said.count},)"
    if said.kind == _BROADCAST:
        return f"{kind}(root={said.root}){of} ({said.count},)"
    return f"{kind}(){of}" if said.kind in _MOVES else f"{kind}()"


def mismatch(ranks: Sequence[int], said: Sequence[Signature]) -> Desynchronized:
    """said: each rank's, in order."""
    words = [in_words(one) for one in said]
    if len(set(words)) == 1:  # what differs has no name here
        words = [f"{text}, lengths {one.lengths:x}, tag {one.tag:x}" for text, one in
                 zip(words, said, strict=True)]  # fmt: skip
    if len(set(words)) == 1:
        return Desynchronized(
            f"The amounts that ranks send differ from what the others expect. Received: {words[0]} "
            f"on ranks {', '.join(map(str, ranks))}. Make sends[b] on rank a the receives[a] on b."
        )
    return disagreement(dict(zip(ranks, words, strict=True)))


def failure(code: Code, rank: int, doing: str, last: str, seconds: float) -> DreamError:
    """What ended a group for good. rank: the culprit. last: the last call it made. seconds: the
    stall time."""
    if code is Code.GONE:
        return departure(rank, doing)
    if code is Code.STALLED:
        return absence(Call(doing), {rank: last}, seconds)
    if code is Code.LEFT:
        return WorkerFailed(
            f"Rank {rank} has left. Received: it aborted a call, or closed its group, while the "
            f"others were in {doing}. See that rank's own error message.",
            rank=rank,
        )
    return DreamError(f"The native core refused {doing}. Received: {code.name}. Report this.")


def busy() -> ConfigurationError:
    return ConfigurationError(
        "A group allows one call at a time, in the process that created it. Received: a call while "
        "another thread is in one, or in a forked child. Call from one thread, or create a group "
        "per thread."
    )
