"""Memory in which a process says what it is, for `dream where`. This user's processes alone can
open it, and nothing of it is left, however the process ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, final

JOB = "dream-job"
"""A launcher's, as /proc shows it."""
RANK = "dream-standing"
"""A rank's."""
_FORMAT = 1
"""Raised when what is said changes: a job of another version is not read."""
_TRIES = 20
_LONGEST = 1 << 20


@final
class ProcessNotice:
    """What this process says of itself, on systems that have such memory."""

    def __init__(self, name: str) -> None:
        able = hasattr(os, "memfd_create")
        self._fd = os.memfd_create(name, os.MFD_CLOEXEC) if able else -1

    def write(self, facts: Mapping[str, Any]) -> None:
        """Say this, in the place of what was said before."""
        if self._fd >= 0:
            write_facts(self._fd, facts)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def write_facts(fd: int, facts: Mapping[str, Any], at: int = 0) -> None:
    """at: how many bytes into the memory."""
    said = {"pid": os.getpid(), "format": _FORMAT, **facts}
    os.pwrite(fd, json.dumps(said).encode() + b"\0", at)


def opened(pid: int, name: str) -> Iterator[int]:
    """Open the memory of this name that a process holds: descriptors, to be closed. Of a process
    that is another user's, or has ended, there is none."""
    with suppress(OSError):
        for held in sorted(Path(f"/proc/{pid}/fd").iterdir()):
            with suppress(OSError):
                if held.readlink().name.removesuffix(" (deleted)") == f"memfd:{name}":
                    yield os.open(held, os.O_RDONLY | os.O_CLOEXEC)


def facts_of(pid: int, fd: int, at: int = 0) -> dict[str, Any] | None:
    """Return what a process says; None where nothing is said yet, or by another process, whose
    memory this one has open, or by another version. Nobody holds a lock: what is torn is read
    again."""
    for _ in range(_TRIES):
        with suppress(ValueError):
            facts = json.loads(os.pread(fd, _LONGEST, at).partition(b"\0")[0])
            known = isinstance(facts, dict) and (facts.get("pid"), facts.get("format"))
            return facts if known == (pid, _FORMAT) else None
    return None
