"""Built wheels, one folder per key, kept for the user across environments."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dream._errors import Unsupported
from dream.cluster.settings import cache_folder


def root() -> Path:
    """Where wheels are kept."""
    return cache_folder() / "horovod"


def find(folder: Path) -> Path | None:
    """The newest wheel in a key's folder."""
    wheels = sorted(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    return wheels[-1] if wheels else None


def place(file: Path, folder: Path) -> Path:
    """Copy a file in whole: whoever looks meanwhile sees the old one or the new, never a part."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / file.name
    partial = folder / f".{file.name}.{os.getpid()}"
    try:
        shutil.copyfile(file, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


@contextmanager
def lock(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a folder against other builds; `waiting` is called once if it is taken.

    The kernel lets go of the lock when its process ends, however it ends.
    """
    try:
        import fcntl
    except ImportError as error:
        raise Unsupported(
            "Horovod does not build on this system. Received: no fcntl. Use Linux or macOS, or "
            "another reduction."
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
