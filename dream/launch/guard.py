"""A process that ends the ranks if the launcher itself is killed."""

from __future__ import annotations

import contextlib
import subprocess

# Reads process groups until it is told that all is done. A pipe that closes without that word
# means that the launcher is gone. A shell starts in a millisecond. `-s KILL --` is how
# every shell takes a group.
_SCRIPT = """
trap '' HUP INT TERM
groups=
while read -r word; do
  [ "$word" = done ] && exit 0
  groups="$groups -$word"
done
[ -n "$groups" ] && kill -s KILL -- $groups 2>/dev/null
"""


class Guard:
    """Knows the ranks' process groups, and outlives the launcher."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

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
