"""A secret of this user's on this host, in a file that nobody else can read.

It is made by the first process that asks, whole or not at all, so that ranks that start at one
time agree; and it stays, so that nobody waits and no file is ever out of date.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress

from dream._errors import ConfigurationError
from dream.cluster import _names

_FILE = "secret"
_BYTES = 32
_OTHERS = 0o077
"""What group and others may do with a file or folder: here nothing."""


_known: dict[str, bytes] = {}


def users(environ: Mapping[str, str]) -> bytes:
    """Read once a process: the folder may go while a job runs, as at the user's logout.
    ConfigurationError where the folder or the file is not this user's own, or others could read
    it."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime not in _known:
        _known[runtime] = _users(runtime)
    return _known[runtime]


def _users(runtime: str) -> bytes:
    path = _folder(runtime)
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)  # noqa: PTH102 - pathlib's import would cost each start
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(path, error.strerror) from error
    try:
        _check(os.fstat(folder), path)
        return _read(folder, path)
    except OSError as error:
        raise _unusable(f"{path}/{_FILE}", error.strerror) from error
    finally:
        os.close(folder)


def _folder(runtime: str) -> str:
    """In the user's own folder for such things, where the system made one; else among the
    temporary ones, under a name that another user may have taken, which is found out."""
    if os.path.isabs(runtime):  # noqa: PTH117
        with suppress(OSError):
            facts = os.lstat(runtime)
            if stat.S_ISDIR(facts.st_mode) and _is_ours(facts):
                return os.path.join(runtime, "dream")  # noqa: PTH118
    import tempfile

    try:
        return os.path.join(tempfile.gettempdir(), f"dream-{os.getuid()}")  # noqa: PTH118
    except OSError as error:
        raise _unusable("no folder for temporary files", error.strerror) from error


def _read(folder: int, path: str) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(_FILE, flags, dir_fd=folder)
    except FileNotFoundError:
        _make(folder)
        file = os.open(_FILE, flags, dir_fd=folder)
    try:
        facts = os.fstat(file)
        _check(facts, f"{path}/{_FILE}")
        secret = os.read(file, _BYTES + 1) if stat.S_ISREG(facts.st_mode) else b""
    finally:
        os.close(file)
    if len(secret) != _BYTES:
        raise _unusable(f"{path}/{_FILE}", f"not a file of {_BYTES} bytes")
    return secret


def _make(folder: int) -> None:
    """The first to link its file under the name has made it; the others take that one."""
    part = f"{os.getpid()}-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(part, flags, 0o600, dir_fd=folder)
    try:
        os.write(file, os.urandom(_BYTES))
        os.fsync(file)
        with suppress(FileExistsError):
            os.link(part, _FILE, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(file)
        os.unlink(part, dir_fd=folder)


def _check(facts: os.stat_result, path: str) -> None:
    if facts.st_uid != os.getuid():
        raise _unusable(path, f"owned by user {facts.st_uid}, not {os.getuid()}")
    if not _is_ours(facts):
        raise _unusable(path, f"open to others, mode {stat.S_IMODE(facts.st_mode):04o}")


def _is_ours(facts: os.stat_result) -> bool:
    return facts.st_uid == os.getuid() and not facts.st_mode & _OTHERS


def _unusable(path: str, why: str | None) -> ConfigurationError:
    return ConfigurationError(
        f"There is no place for a secret that strangers cannot read. Received: {path} ({why}). "
        f"Remove it, or give every rank a common secret: export "
        f"{_names.TOKEN}={os.urandom(16).hex()}"
    )
