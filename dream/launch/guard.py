"""The launcher's own end: a process that tidies up if it is killed, and signals that have it end a
job."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import final

# Reads process groups and folders, a line each, until it is told that all is done. A pipe that
# closes without that word means that the launcher is gone. A shell starts in a millisecond.
# `-s KILL --` is how every shell takes a group. Folders go once nobody writes in them any more.
_SCRIPT = """
trap '' HUP INT TERM
groups=
while IFS= read -r line; do
  case $line in
    done) exit 0 ;;
    /*) set -- "$@" "$line" ;;
    *) groups="$groups -$line" ;;
  esac
done
[ -n "$groups" ] && kill -s KILL -- $groups 2>/dev/null
[ $# -gt 0 ] && sleep 1 && rm -rf -- "$@"
"""


@final
class Guard:
    """Knows the ranks' process groups and temporary folders, and outlives the launcher."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def add(self, group: int) -> None:
        self._tell(str(group))

    def add_folder(self, folder: Path) -> None:
        """Have an absolute path removed, with all that is in it."""
        if "\n" not in str(folder):  # a line each is all that the shell reads
            self._tell(str(folder))

    def close(self) -> None:
        """The ranks have ended: there is nothing left to guard."""
        self._tell("done")
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.flush()


@contextlib.contextmanager
def temporary_folder(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """Make a folder for the block's length, this user's alone, which goes even where this process
    is killed. within: where; None for the system's place for such."""
    guard = Guard()
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=within) as name:
            folder = Path(name).absolute()
            guard.add_folder(folder)
            yield folder
    finally:
        guard.close()


@contextlib.contextmanager
def folder_held(prefix: str, within: Path) -> Iterator[Path]:
    """Make one that the next who asks for such removes, where whatever held it was killed with its
    guard, as a whole container or a job of a scheduler is."""
    for left in within.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _held(left):  # another's, or held: it stays
            shutil.rmtree(left)
    with temporary_folder(prefix, within) as folder:
        (folder / _LOCK).touch()
        with _held(folder):
            yield folder


_LOCK = ".held"


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, which goes with its process. OSError where another holds it, or it has
    none yet."""
    import fcntl

    with (folder / _LOCK).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextmanager
def heard(put: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Hand over each signal that comes in the block, SIGHUP as far as nohup does not forbid it.
    put: a SimpleQueue's, say, which may be called at any point."""

    def take(number: int, frame: FrameType | None) -> None:
        del frame
        put(signal.Signals(number))

    unheard = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = [number for number in _STOPPING if number != signal.SIGHUP or not unheard]
    before = {number: signal.signal(number, take) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
