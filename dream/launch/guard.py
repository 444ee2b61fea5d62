"""A process that tidies up if the launcher itself is killed."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
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
if [ -n "$groups" ]; then
  kill -s KILL -- $groups 2>/dev/null
  sleep 1
fi
[ $# -gt 0 ] && rm -rf -- "$@"
"""


@final
class Guard:
    """Knows the ranks' process groups and the job's temporary folders, and outlives the
    launcher."""

    def __init__(self, folders: tuple[Path, ...] = ()) -> None:
        """folders: absolute paths, removed with all that is in them if the launcher is killed."""
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        for folder in folders:
            if "\n" not in str(folder):  # a line each is all that the shell reads
                self._tell(str(folder))

    def add(self, group: int) -> None:
        self._tell(str(group))

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
