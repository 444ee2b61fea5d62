"""What the core reports, as dream's own errors. Ranks are named as the job numbers them."""

from __future__ import annotations

from collections.abc import Sequence

from dream._errors import ConfigurationError, Desynchronized, DreamError, WorkerFailed
from dream.collectives.board import absence, departure, disagreement
from dream.collectives.call import Call
from dream.shared_memory.codes import DTYPES, KINDS, OPERATIONS, Code
from dream.shared_memory.library import Signature

_DTYPES = {code: name for name, code in DTYPES.items()}
_OPERATIONS = {code: name for name, code in OPERATIONS.items()}
_REDUCE, _BROADCAST, _MOVES = (2, 3), 4, (5, 6)


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
            f"What ranks send is not what the others expect of them. Received: {words[0]} on "
            f"ranks {', '.join(map(str, ranks))}. Make sends[b] on rank a the receives[a] on b."
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
            f"Rank {rank} has left. Received: it gave up a call, or closed its group, while the "
            f"others were in {doing}. Look at that rank's own message.",
            rank=rank,
        )
    return DreamError(f"The native core refused {doing}. Received: {code.name}. Report this.")


def busy() -> ConfigurationError:
    return ConfigurationError(
        "A group makes one call at a time, in the process that made it. Received: a call while "
        "another thread is in one, or in a forked child. Make calls from one thread, or make a "
        "group for each."
    )
