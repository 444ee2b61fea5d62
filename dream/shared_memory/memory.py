"""Memory that processes share and no folder shows: whatever dies, nothing of it stays.

An anonymous file (memfd), which a small /dev/shm does not limit, else a file without a name in
/dev/shm. Another rank opens it through /proc where it sees the first one's process, else is handed
it over a socket, which also goes from one container to another of the same network.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from dream._errors import Unsupported
from dream._log import logger
from dream.cluster.entrance import expect, greet

TOKEN = 16
"""Bytes at the end of the memory by which a rank knows it is the right one."""

_NOT_EXECUTABLE = 8  # MFD_NOEXEC_SEAL, which some systems insist on
_LARGEST, _SMALLEST = 512 * 1024, 16 * 1024
_MOST = 16 << 20
"""Bytes of all ranks' slots for one chunk."""
_FOLDER = "/dev/shm"
_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Made:
    """Shared memory that one process has made for all ranks of a host.

    fd: of the memory, in the process that made it. slot: bytes, of each rank's each slot.
    """

    fd: int
    slot: int
    token: bytes


def make(ranks: int, needed: Callable[[int, int], int]) -> Made:
    """With the largest slots that there is room for. needed: ranks, slot -> bytes."""
    slot, refusals = _LARGEST, []
    while slot > _SMALLEST and slot * ranks > _MOST:
        slot //= 2
    while slot >= max(_SMALLEST, 64 * ranks):
        size = needed(ranks, slot) + TOKEN
        for create in (_anonymous, _nameless):
            try:
                made = _filled(create(), size, slot)
            except OSError as error:
                refusals.append(f"{size} bytes of {create.__name__[1:]} memory: {error.strerror}")
                continue
            if refusals:
                _say_smaller(slot, refusals[0])
            return made
        slot //= 2
    raise Unsupported(
        f"Shared memory for {ranks} ranks could not be allocated. Received: {refusals[0]}; at last "
        f"{refusals[-1]}. Give the job or its container more memory, raise the limit on file sizes "
        f"(ulimit -f) or the size of {_FOLDER}, or use another reduction."
    )


def reserve(size: int) -> Made:
    """So many bytes, all of them there from now on."""
    refusals = []
    for create in (_anonymous, _nameless):
        try:
            return _filled(create(), size + TOKEN, 0)
        except OSError as error:
            refusals.append(f"{create.__name__[1:]} memory: {error.strerror}")
    raise Unsupported(
        f"Shared memory for the ranks could not be allocated. Received: {size} bytes of "
        f"{', of '.join(refusals)}. Give the job or its container more memory, or raise the limit "
        f"on file sizes (ulimit -f) or the size of {_FOLDER}."
    )


def _say_smaller(slot: int, refusal: str) -> None:
    logger.warning(
        "shared memory uses smaller pieces of %d KiB, which is slower: the system refused %s",
        slot // 1024,
        refusal,
    )


def _anonymous() -> int:
    try:
        return os.memfd_create("dream-shared", os.MFD_CLOEXEC)
    except PermissionError:
        return os.memfd_create("dream-shared", os.MFD_CLOEXEC | _NOT_EXECUTABLE)


def _nameless() -> int:
    return os.open(_FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _filled(fd: int, size: int, slot: int) -> Made:
    """Every page is there now: a write never fails later, with a signal."""
    try:
        os.fchmod(fd, 0o600)
        os.posix_fallocate(fd, 0, size)
        token = secrets.token_bytes(TOKEN)
        os.pwrite(fd, token, size - TOKEN)
    except OSError:
        os.close(fd)
        raise
    return Made(fd, slot, token)


def open_through_proc(pid: int, fd: int, token: bytes) -> int | None:
    """Another process's memory; None where it cannot be reached or is not it."""
    try:
        found = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    return _checked(found, token)


def listen() -> socket.socket:
    """A socket without a file, on which `hand_out` answers."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(b"\0dream-" + secrets.token_hex(16).encode())
    made.listen(64)
    return made


def hand_out(made: Made, listening: socket.socket, times: int) -> None:
    """Give the memory to so many who know the token; to fewer, where they do not come."""
    given = threading.Semaphore(0)

    def give(_: int, __: str, other: socket.socket) -> None:
        with closing(other), suppress(OSError):
            socket.send_fds(other, [b"here"], [made.fd])
            given.release()

    entrance = expect(listening, made.token.hex(), give, "dream-memory")
    try:
        while times and given.acquire(timeout=_SECONDS):
            times -= 1
    finally:
        entrance.close()


def fetch(address: bytes, token: bytes) -> int | None:
    """The memory of whoever listens there; None where nobody can be reached."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_SECONDS)
        try:
            asking.connect(address)
            greet(asking, token.hex(), 0, "memory")
            _, found, _, _ = socket.recv_fds(asking, 4, 1)
        except OSError:
            return None
    return _checked(found[0], token) if found else None


def _checked(fd: int, token: bytes) -> int | None:
    """fd, where the memory ends with the token."""
    size = os.fstat(fd).st_size
    if size >= TOKEN and os.pread(fd, TOKEN, size - TOKEN) == token:
        return fd
    os.close(fd)
    return None


def is_supported() -> bool:
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").exists()
