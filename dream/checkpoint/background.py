"""Checkpoints that are written while training goes on: by a thread of each rank that writes, out of
memory of its own. Files and digests let go of the interpreter, so a step waits for neither."""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

from dream import cluster
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
    """What this rank writes of a checkpoint. state: rank 0's alone."""

    folder: CheckpointFolder
    begun: Begun
    allotment: Allotment
    kinds: Mapping[str, Arrays]
    state: Mapping[str, Any]


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
        if ranks.rank in work.allotment.writers:
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
            (self._commit if self._ranks.rank == 0 else self._write_part)(work)
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
            f"The checkpoint was not written, and those before it are as they were. Received: "
            f"{self._place}, and of rank {self._ranks.rank}: {error!r}."
        )

    def _commit(self, work: Work) -> None:
        folder, begun = work.folder, work.begun
        with folder.writing(begun):
            files = folder.write(begun, work.allotment, work.kinds)
            for rank in work.allotment.writers[1:]:
                files |= _await(begun, rank)
            folder.commit(begun, work.allotment, work.state, files)

    def _write_part(self, work: Work) -> None:
        key = _key(work.begun, self._ranks.rank)
        try:
            files = work.folder.write(work.begun, work.allotment, work.kinds)
        except Exception as error:  # rank 0 waits for a word
            said = self._failed(error)
            _store().put(key, json.dumps({"error": str(said)}).encode())
            raise said from error
        _store().put(key, json.dumps({"files": files}).encode())


def settle() -> None:
    """Wait for this rank's part of every checkpoint that is being written."""
    for writing in [*_under_way]:
        writing.join()


def _await(begun: Begun, rank: int) -> dict[str, Told]:
    """Return what a rank has written, once it has."""
    limit = time.monotonic() + cluster.stall_seconds()
    ends = None
    while (told := _store().find(_key(begun, rank))) is None:
        now = time.monotonic()
        if ends is None and not threading.main_thread().is_alive():
            ends = now + _AT_THE_END
        if now > min(limit, ends or limit):
            raise WorkerFailed(
                "The checkpoint was not written, and those before it are as they were. Received: "
                f"{begun.place}, nothing from rank {rank}. Look at why it left.",
                rank=rank,
            )
        time.sleep(_WAIT)
    _store().delete(_key(begun, rank))
    found = json.loads(told)
    if "error" in found:
        raise DreamError(found["error"])
    files: dict[str, Told] = found["files"]
    return files


def _key(begun: Begun, rank: int) -> str:
    return f"checkpoint/{begun.part.name}/{rank}"


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
