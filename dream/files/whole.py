"""Files that appear whole or not at all.

A file is written beside its place under a name of its own, is on the disk before it takes its
place, and takes it by a rename. What was there keeps its mode, and stays whole where writing fails.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from dream._errors import ConfigurationError, DreamError

Turn = Callable[[], AbstractContextManager[bool]]
"""Held around the rename; what it gives says whether the file is to take its place."""

_AS_THEY_STAND = ("/proc/", "/dev/fd/", "/dev/stdout", "/dev/stderr")
_LONGEST_TAIL = 200
"""Bytes of a name that the name beside it ends in: a folder takes 255."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _at_once() -> AbstractContextManager[bool]:
    return nullcontext(True)


@contextmanager
def whole(path: str | os.PathLike[str], turn: Turn = _at_once) -> Iterator[Path]:
    """Where to write: an empty file whose name ends as that of `path` does. Once the block is left
    in peace it takes its place, where a link leads to. An error leaves nothing; OSError where the
    disk has no room. A device or a pipe is given itself, to be written into as it stands."""
    if stands(path):
        yield Path(path)
        return
    place = resolved(path)
    before = _status(place)
    part = _beside(place)
    try:
        with _no_room_told(place):
            yield part
            _settle(part, before)
        with turn() as allowed:
            if allowed:
                os.replace(part, place)  # noqa: PTH105
                settle_folder(place.parent)
    finally:
        part.unlink(missing_ok=True)


def write_whole(
    path: str | os.PathLike[str], fill: Callable[[IO[bytes]], Any], turn: Turn = _at_once
) -> None:
    """What `fill` writes into the open file it is given is at `path` once all of it is there."""
    with whole(path, turn) as part, part.open("wb") as file:
        fill(file)


def write_json(path: Path, figures: Mapping[str, Any]) -> None:
    """All or nothing. figures: without nan or infinity, which JSON has no words for."""
    text = json.dumps(figures, indent=2, allow_nan=False) + "\n"
    try:
        write_whole(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise DreamError(
            f"The figures could not be written. Received: {path} ({error.strerror}). Free some "
            "space, or choose another file."
        ) from error


def is_file(path: Path) -> bool:
    """Whether there is one; False for what could be no path at all, such as too long a name."""
    try:
        return path.is_file()
    except OSError:
        return False


def stands(path: str | os.PathLike[str]) -> bool:
    """Whether it is written into as it stands: a device, a pipe, an open file's own name."""
    if os.path.abspath(path).startswith(_AS_THEY_STAND):  # noqa: PTH100 - links not followed
        return True
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def resolved(path: str | os.PathLike[str]) -> Path:
    """Where a file of that name is written: where links lead, there or not."""
    try:
        return Path(path).resolve()
    except RuntimeError as error:  # links in a circle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error


def check_output(option: str, path: Path | None) -> None:
    """Refuse, before anything runs, a file that cannot be written. option: for the message."""
    if path is None:
        return
    why = _obstacle(path)
    if why is not None:
        raise ConfigurationError(
            f"A file cannot be written there. Received: {option} {path}{why}. Create its folder "
            "first, or choose another file."
        )


def _obstacle(path: Path) -> str | None:
    """For the message; None where the file can be written."""
    try:
        if stands(path) and path.exists():
            return None if os.access(path, os.W_OK) else ", which cannot be written into"
        path = resolved(path)
        if path.is_dir():
            return ", a folder"
        if not path.parent.is_dir():
            return ""
        with TemporaryFile(dir=path.parent):
            return None
    except OSError as error:  # too long a name, or links in a circle
        return f" ({error.strerror})"


def _status(place: Path) -> os.stat_result | None:
    """Of the file that is to be replaced; None where there is none. OSError where a plain `open`
    to write would raise it: a rename asks the folder alone."""
    try:
        found = place.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(place))
    if not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
    return found


def _beside(place: Path) -> Path:
    """A new empty file in the same folder. Savers go by how its name ends."""
    tail = os.fsdecode(os.fsencode(place.name)[-_LONGEST_TAIL:])
    part = place.with_name(f".part-{secrets.token_hex(8)}.{tail}")
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(place)) from None
    return part


def _settle(part: Path, before: os.stat_result | None) -> None:
    """On the disk, and with the mode and owner of what it replaces."""
    held = os.open(part, os.O_RDONLY)
    try:
        if before is not None:
            with suppress(PermissionError):  # another's file, which its group may write
                os.fchown(held, before.st_uid, before.st_gid)
            os.fchmod(held, stat.S_IMODE(before.st_mode))
        os.fsync(held)
    finally:
        os.close(held)


def settle_folder(folder: Path) -> None:
    """Bring a rename to the disk too, where the folder can be opened and its disk knows how."""
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(held)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(held)


@contextmanager
def _no_room_told(place: Path) -> Iterator[None]:
    """Savers say it each in words of their own, and seldom name file or disk."""
    try:
        yield
    except Exception as error:
        number = _no_room_in(error)
        if number is None:
            raise
        disk = shutil.disk_usage(place.parent)
        raise OSError(
            number,
            f"{os.strerror(number)}. The file was not written; an existing file is unchanged. "
            f"Received: a disk of {disk.total >> 20} MB with {disk.free >> 20} MB free at "
            f"{_mount_of(place.parent)}. Free some space, or choose another disk",
            str(place),
        ) from error


def _no_room_in(error: BaseException | None) -> int | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for number in _NO_ROOM:
            if getattr(error, "errno", None) == number or os.strerror(number) in str(error):
                return number
        error = error.__cause__ or error.__context__
    return None


def _mount_of(folder: Path) -> Path:
    return next((each for each in (folder, *folder.parents) if each.is_mount()), folder)
