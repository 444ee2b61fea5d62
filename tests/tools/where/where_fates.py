"""Ways to stand still that no framework has a part in, for the scripts of both. FOLDER is their
first argument."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

FOLDER = Path(sys.argv[1])


def stand(name: str) -> None:
    """Leave a mark, and stay until the test says that it is over."""
    (FOLDER / name).touch()
    while not (FOLDER / f"go-{name}").exists():
        time.sleep(0.02)


def lock() -> None:
    taken, ready = threading.Lock(), threading.Event()

    def holds() -> None:
        with taken:
            ready.set()
            stand("lock")

    threading.Thread(target=holds).start()
    ready.wait()
    with taken:
        pass


def deadlock() -> None:
    """Each of two threads holds what the other waits for; the test's go has one of them give up."""
    first, second, ready = threading.Lock(), threading.Lock(), threading.Event()

    def other() -> None:
        with second:
            ready.set()
            (FOLDER / "deadlock").touch()
            while not (FOLDER / "go-deadlock").exists() and not first.acquire(timeout=0.1):
                pass

    with first:
        threading.Thread(target=other).start()
        ready.wait()
        with second:
            pass


def swallowed() -> None:
    try:
        raise RuntimeError("nobody hears of this")
    except RuntimeError:
        stand("swallowed")


class Rubbish:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        stand("garbage")


def garbage() -> None:
    Rubbish()
    gc.collect()


def paging() -> None:
    """Read memory that is no longer there, as what is swapped is not: a file's, which the system
    has let go of."""
    size = 64 << 20
    with (FOLDER / "pages").open("wb+") as file:
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as memory:
            memory.madvise(mmap.MADV_RANDOM)
            (FOLDER / "paging").touch()
            while not (FOLDER / "go-paging").exists():
                memory.madvise(mmap.MADV_DONTNEED)
                os.posix_fadvise(file.fileno(), 0, size, os.POSIX_FADV_DONTNEED)
                for at in range(0, size // 16, mmap.PAGESIZE):
                    memory[at]


FATES: dict[str, Callable[[], None]] = {
    "lock": lock,
    "deadlock": deadlock,
    "swallowed": swallowed,
    "garbage": garbage,
    "paging": paging,
    "stopped": partial(stand, "stopped"),  # the test sends SIGSTOP
}
