"""Checkpoints that are written while training goes on: by a thread of each rank that writes, out of
memory of its own. Files and digests let go of the interpreter, so a step waits for neither."""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

from dream import cluster, stall
from dream._errors import DreamError, WorkerFailed
from dream._log import logger
from dream.checkpoint.content import Arrays
from dream.checkpoint.storage.allotment import Allotment
from dream.checkpoint.storage.array_files import Told
from dream.checkpoint.storage.folder import Begun, CheckpointFolder, not_written
from dream.collectives import Communicator
from dream.collectives.rank_zero import at_rank_0
from dream.files.store import PatientStore

_WAIT = 0.02
_AT_THE_END = 5.0
"""Seconds that a process which ends waits for other ranks, which may have ended too."""
_NICER = 5

_under_way: set[Writing] = set()
_unheard: list[Writing] = []
"""Those of this process, whoever began them: still written; and whose end nobody has asked for."""


@final
class Saving(os.PathLike[str]):
    """A checkpoint that is on its way to `path`, where it is whole once `wait` has come back."""

    def __init__(self, path: Path, writing: Writing | None) -> None:
        """writing: None where another process does, which this one hears nothing of."""
        self.path, self._writing = path, writing

    def wait(self) -> Path:
        """Return its folder once it is whole. Call it on every rank; what the disk refused is
        raised on each."""
        if self._writing is not None:
            self._writing.finish()
        return self.path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Saving({str(self.path)!r})"


@dataclass(frozen=True, slots=True)
class Work:
    """What this rank writes of a checkpoint. state: rank 0's alone. leaders: the ranks that put it
    in its place: rank 0, or the first of each host where every host has one of its own."""

    folder: CheckpointFolder
    begun: Begun
    allotment: Allotment
    kinds: Mapping[str, Arrays]
    state: Mapping[str, Any]
    leaders: Sequence[int] = (0,)

    def leader(self, rank: int) -> int:
        """Return the one that puts in its place what a rank writes."""
        return max(each for each in self.leaders if each <= rank)


@final
class Writing:
    """One checkpoint, on one rank. error: what went wrong here, once it is settled. seconds: of a
    core, that this rank's part has taken."""

    def __init__(self, work: Work, ranks: Communicator) -> None:
        self._ranks, self._place = ranks, work.begun.place
        self.error: Exception | None = None
        self.seconds = 0.0
        self._settled = threading.Event()
        self._heard = False
        thread = threading.Thread(target=self._run, args=(work,), name="dream-checkpoint")
        if ranks.rank - work.leader(ranks.rank) in work.allotment.writers:
            _under_way.add(self)
            thread.start()
        else:
            self._settled.set()

    def finish(self) -> None:
        """Wait for all ranks' parts, and raise on every rank what went wrong. Each calls it."""
        if self._heard:
            if self.error is not None:
                raise self.error
            return
        self.join()
        self._hear()
        try:
            at_rank_0(self._ranks, self._outcome)
        except WorkerFailed as error:
            if self.error is not None:  # the cause, that a rank which is gone cannot be told
                raise self.error from error
            self.error = error
            raise
        except DreamError as error:
            self.error = error
            raise

    @property
    def settled(self) -> bool:
        """Tell whether this rank's part is over."""
        return self._settled.is_set()

    def join(self) -> None:
        """Wait for this rank's part alone."""
        self._settled.wait()

    def tell(self) -> None:
        """Say what went wrong, where nothing can raise it any more."""
        self.join()
        if self.error is not None and not self._heard:
            self._hear()
            logger.error("%s", self.error)

    def _hear(self) -> None:
        self._heard = True
        _unheard.remove(self)

    def _outcome(self) -> str:
        if self.error is not None:
            raise self.error
        return ""

    def _run(self, work: Work) -> None:
        with suppress(OSError):  # of this thread alone: a step goes first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICER)
        try:
            self._write(work)
        except Exception as error:  # raised by `finish`
            self.error = self._failed(error)
        finally:
            self.seconds = time.thread_time()
            _under_way.discard(self)
            self._settled.set()

    def _failed(self, error: Exception) -> DreamError:
        if isinstance(error, DreamError):
            return error
        if isinstance(error, OSError):
            return not_written(self._place, error)
        return DreamError(
            "The checkpoint was not written; earlier checkpoints are unchanged. Received: "
            f"{self._place}, and of rank {self._ranks.rank}: {error!r}."
        )

    def _write(self, work: Work) -> None:
        """Write this rank's part. Whoever waits for it hears of it, or of what went wrong."""
        begun, own = work.begun, self._ranks.rank
        leads = work.leader(own) == own
        waiting = [0 if leads else work.leader(own)] if own else work.leaders[1:]
        told: dict[str, Any] = {}
        try:
            if leads:
                self._commit(work)
            else:
                told["files"] = work.folder.write(begun, work.allotment, work.kinds)
        except Exception as error:
            told["error"] = str(self._failed(error))
            raise
        finally:
            for rank in waiting if own or told else ():
                _send(begun, own, rank, told)

    def _commit(self, work: Work) -> None:
        folder, begun, own = work.folder, work.begun, self._ranks.rank
        others = work.leaders[1:] if own == 0 else ()
        with folder.writing(begun):
            files = self._written(work)
            for leader in others:
                _send(begun, own, leader, {"state": work.state})
            state = _await(begun, 0, own)["state"] if own else work.state
            folder.commit(begun, work.allotment, state, files)
        for leader in others:
            _await(begun, leader, own)

    def _written(self, work: Work) -> dict[str, Told]:
        """Write this rank's part, and hear of those of its host. Whatever went wrong, nobody writes
        into the folder after it: it can be removed."""
        begun, own = work.begun, self._ranks.rank
        others = (_told_by(begun, own + index, own) for index in work.allotment.writers[1:])
        try:
            files = work.folder.write(begun, work.allotment, work.kinds)
        except Exception:
            with suppress(WorkerFailed):
                deque(others, maxlen=0)
            raise
        for told in [*others]:
            files |= _checked(told)["files"]
        return files


def settle() -> None:
    """Wait for this rank's part of every checkpoint that is being written."""
    for writing in [*_under_way]:
        writing.join()


def _await(begun: Begun, rank: int, own: int) -> dict[str, Any]:
    """Return what a rank tells this one, once it does. DreamError with what it could not write."""
    return _checked(_told_by(begun, rank, own))


def _checked(told: dict[str, Any]) -> dict[str, Any]:
    if "error" in told:
        raise DreamError(told["error"])
    return told


def _told_by(begun: Begun, rank: int, own: int) -> dict[str, Any]:
    """Return what a rank tells this one of its part, or of what went wrong with it, once it does.
    WorkerFailed where it says nothing."""
    limit = time.monotonic() + cluster.stall_seconds()
    ends = None
    key = _key(begun, rank, own)
    while (told := _store().find(key)) is None:
        now = time.monotonic()
        if ends is None and not threading.main_thread().is_alive():
            ends = now + _AT_THE_END
        gone = stall.gone(rank)  # and has told nothing before
        if gone and (told := _store().find(key)) is not None:
            break
        if gone or now > min(limit, ends or limit):
            raise WorkerFailed(
                "The checkpoint was not written; earlier checkpoints are unchanged. Received: "
                f"{begun.place}, nothing from rank {rank}. Find out why that rank exited.",
                rank=rank,
            )
        time.sleep(_WAIT)
    _store().delete(key)
    found: dict[str, Any] = json.loads(told)
    return found


def _send(begun: Begun, own: int, rank: int, told: Mapping[str, Any]) -> None:
    _store().put(_key(begun, own, rank), json.dumps(told).encode())


def _key(begun: Begun, teller: int, reader: int) -> str:
    return f"checkpoint/{begun.part.name}/{teller}/{reader}"


@cache
def _store() -> PatientStore:
    return PatientStore(cluster.rendezvous(cluster.detect()), cluster.stall_seconds())


def begin(work: Work, ranks: Communicator) -> Writing:
    """Have a checkpoint written while this process goes on."""
    _tells_at_the_end()
    writing = Writing(work, ranks)
    _unheard.append(writing)
    return writing


@cache
def _tells_at_the_end() -> None:
    """Once: threads are over by then. A forked process has none of them."""
    atexit.register(_tell)
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    _under_way.clear()
    _unheard.clear()


def _tell() -> None:
    for writing in [*_unheard]:
        writing.tell()
