"""The memory that a rank lays open: where it stands, written every few seconds, and facts of it.
Other ranks read it, and `dream where`, as this user's processes alone can."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from dream.stall import notice
from dream.stall.status import RankStatus, text_of

_BYTES = 8192
FACTS_AT = _BYTES
"""Behind the page lies what does not change."""
_TRIES = 20
_MOST_RANKS = 512
"""That fit, of those that a rank waits for."""


@final
class StatusPage:
    """The memory that this rank lays open. Nothing is left of it, however the process ends."""

    def __init__(self, stacks: int) -> None:
        """stacks: the memory that this rank's stacks are written to."""
        self._fd = os.memfd_create(notice.RANK, os.MFD_CLOEXEC)
        self._word = secrets.token_hex(16)
        self._stacks = stacks
        self._beat = 0

    @property
    def address(self) -> bytes:
        """Return what others must know to read it."""
        pid = os.getpid()
        where = {"pid": pid, "began": began(pid), "fd": self._fd, "stacks": self._stacks}
        return text_of({**where, "word": self._word})

    def introduce(self, facts: Mapping[str, Any]) -> None:
        """Say what does not change, for readers who have met no address."""
        notice.write_facts(self._fd, {**json.loads(self.address), **facts}, FACTS_AT)

    def write(self, status: RankStatus, signal: int) -> None:
        """signal: what has this rank write its stack."""
        self._beat += 1
        ranks = None if status.ranks is None else status.ranks[:_MOST_RANKS]
        said = {
            **status.packed(),
            "ranks": ranks,
            "beat": self._beat,
            "at": time.monotonic(),
            "signal": signal,
            "word": self._word,
        }
        os.pwrite(self._fd, text_of(said).ljust(_BYTES)[:_BYTES], 0)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another rank of this host. fd, stacks: its memory, opened here."""

    pid: int
    began: str
    fd: int
    stacks: int
    word: str

    @classmethod
    def met(cls, address: bytes) -> Self | None:
        """Open the memory of the rank of this address; None where it cannot be reached."""
        said = json.loads(address)
        folder, opened = Path(f"/proc/{said['pid']}/fd"), []
        try:
            for name in ("fd", "stacks"):
                opened.append(os.open(folder / str(said[name]), os.O_RDONLY | os.O_CLOEXEC))
            found = cls(said["pid"], said["began"], opened[0], opened[1], said["word"])
        except OSError:
            found = None
        if found is not None and found.read() is not None:
            return found
        for fd in opened:
            os.close(fd)
        return None

    def read(self) -> dict[str, Any] | None:
        """Return what it last wrote. Nobody holds a lock: a page that is torn is read again."""
        for _ in range(_TRIES):
            try:
                said = json.loads(os.pread(self.fd, _BYTES, 0))
            except (ValueError, OSError):
                continue
            if isinstance(said, dict) and said.get("word") == self.word:
                return said
        return None

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.stacks)

    @property
    def state(self) -> str:
        """The system's letter for its process: R, S, D, T (stopped), t (by a debugger); empty
        where it has ended."""
        fields = _fields(self.pid)
        return fields[0] if fields and fields[19] == self.began and fields[0] not in "ZX" else ""


def read_back(pid: int) -> int:
    """Return how many pages of its memory a process has waited for the disk for, as what is swapped
    does; 0 where it has ended."""
    fields = _fields(pid)
    return int(fields[9]) if fields else 0


def began(pid: int) -> str:
    """When a process began, by the system's count: tells it from a later one of that number."""
    fields = _fields(pid)
    return fields[19] if fields else ""


def _fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
