"""Lines that make, clear or fill files, which every rank of a job runs: rank 0 first, the others
after it; and what is added to errors of such lines that ran on all at once."""

from __future__ import annotations

import errno
import linecache
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from dream import cluster
from dream._errors import WorkerFailed
from dream._topology import Cluster
from dream.files.store import PatientStore
from dream.launch.undivided import divided

_DONE, _FAILED = b"done", b"failed: "
_FIRST_WAIT, _LONGEST_WAIT = 0.005, 0.2
_calls = count()
_bodies: list[str] = []

REMEDY = (
    "dream: every rank of this job runs this line, and another may have been here first. Put it "
    "under `with dream.rank_zero_first() as first:`, and what is to happen once under `if first:`"
)


@contextmanager
def rank_zero_first() -> Iterator[bool]:
    """Have rank 0 run the body first and the other ranks after it. Call it on every rank, in the
    block or before it. Gives True on rank 0, and on a process by itself.

    Where rank 0 fails, the other ranks raise `WorkerFailed` and do not run it.
    """
    place, number = cluster.detect(), next(_calls)
    divided.set()
    if place.alone:
        yield True
        return
    store = PatientStore(cluster.rendezvous(place), cluster.stall_seconds())
    key = f"first/{number}"
    if place.rank:
        _await(store, key)
        yield False
        return
    _bodies.append(key)
    try:
        yield True
    except BaseException as error:
        store.put(key, _FAILED + f"{type(error).__name__}: {error}".encode())
        raise
    finally:
        _bodies.remove(key)
    store.put(key, _DONE)


def others_wait() -> bool:
    """Whether this is rank 0 in the body of `rank_zero_first`, for whose end the others wait."""
    return bool(_bodies)


def _await(store: PatientStore, key: str) -> None:
    limit, wait = time.monotonic() + cluster.stall_seconds(), _FIRST_WAIT
    while (said := store.find(key)) is None:
        if time.monotonic() > limit:
            raise WorkerFailed(
                "Rank 0 did not finish `rank_zero_first`. Received: nothing in "
                f"{cluster.stall_seconds():g} s. Call it on every rank, the same number of times; "
                "DREAM_STALL_SECONDS sets how long a rank waits.",
                rank=0,
            )
        time.sleep(wait)
        wait = min(wait * 1.5, _LONGEST_WAIT)
    if said != _DONE:
        raise WorkerFailed(
            "Rank 0 failed in the body of `rank_zero_first`, so no other rank runs it. Received: "
            f"{said.removeprefix(_FAILED).decode()}. See rank 0's traceback.",
            rank=0,
        )


_MOVES = re.compile(r"\b(remove|unlink|rmtree|rmdir|rename|replace|move)\b")


def explain(error: BaseException, place: Cluster) -> None:
    """Add to an error of a line that every rank runs, where that may be why, what to do."""
    told = REMEDY in getattr(error, "__notes__", ())
    several = place.local_world_size > 1
    if several and not told and isinstance(error, OSError) and _may_be_shared(error):
        error.add_note(REMEDY)


def _may_be_shared(error: OSError) -> bool:
    """Whether another rank may have made or removed the file: it exists, or is gone while it is
    being removed or moved."""
    if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
        return True
    return error.errno == errno.ENOENT and any(_MOVES.search(line) for line in _lines(error))


def _lines(error: BaseException) -> Iterator[str]:
    """The source lines that an error came through."""
    trace = error.__traceback__
    while trace is not None:
        yield linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
