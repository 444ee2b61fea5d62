"""The command line that a process shows, in `ps` and in `sys.orig_argv`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence


def show_command(words: Sequence[str]) -> None:
    """Show a command line in the place of this process's own, as much of it as has room. Nothing
    where the system does not let it."""
    sys.orig_argv[:] = words
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # proc(5): arg_start and arg_end
        text = " ".join(words).encode(errors="surrogateescape")[: end - start - 2]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
            memory.seek(start)
            # a last byte that is not zero has Linux show what comes before the first zero
            memory.write(text.ljust(end - start - 1, b"\0") + b"\1")
