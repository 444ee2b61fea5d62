"""Folders in memory: where one may be, and how much there is room for."""

from __future__ import annotations

import os
from pathlib import Path

from dream._errors import DreamError

_SHARED = Path("/dev/shm")
_MOUNTS, _MEMORY, _GROUP = Path("/proc/self/mounts"), Path("/proc/meminfo"), "/sys/fs/cgroup/memory"
_MEMORY_KINDS = ("tmpfs", "ramfs")
_SHARE = 2
"""One part in so many of what is free may be taken: the training grows too."""


def folder_in_memory() -> Path | None:
    """Return where folders in memory are made; None where this system has no such place."""
    try:
        mounts = [line.split()[1:3] for line in _MOUNTS.read_text().splitlines()]
    except OSError:
        return None
    kinds = [kind for place, kind in mounts if place == str(_SHARED)]
    there = kinds[-1:] and kinds[-1] in _MEMORY_KINDS and os.access(_SHARED, os.W_OK | os.X_OK)
    return _SHARED if there else None


def check_room(folder: Path, size: int) -> None:
    """Raise DreamError where a folder in memory has no room for so many bytes, before one of them
    is written: what the system has not got it takes by killing."""
    disk = os.statvfs(folder)
    free = min(disk.f_bavail * disk.f_frsize, _free_memory(), _free_of_group()) // _SHARE
    if size > free:
        raise DreamError(
            f"There is not enough memory. Received: {folder}, {size >> 20} MB to write, and "
            f"{free >> 20} MB available. Give the job or its container more memory or a larger "
            "/dev/shm."
        )


def _free_memory() -> int:
    fields = _fields(_MEMORY)
    return 1024 * fields["MemAvailable:"] if "MemAvailable:" in fields else 1 << 62


def _free_of_group() -> int:
    """Return what the control group's limit leaves, files that may be dropped counted as free."""
    try:
        limit = int(Path(f"{_GROUP}.max").read_text())
        used = int(Path(f"{_GROUP}.current").read_text())
    except (OSError, ValueError):  # none, or "max"
        return 1 << 62
    fields = _fields(Path(f"{_GROUP}.stat"))
    return limit - used + fields.get("active_file", 0) + fields.get("inactive_file", 0)


def _fields(file: Path) -> dict[str, int]:
    try:
        words = (line.split() for line in file.read_text().splitlines())
        return {word[0]: int(word[1]) for word in words if len(word) > 1}
    except (OSError, ValueError):
        return {}
