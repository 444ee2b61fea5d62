"""A rank's Python stack, written by faulthandler on that rank when another sends it a signal: it
answers while its interpreter is held by a call into C, too."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import final

_SECONDS = 2.0
_NAP = 0.02
_ENDS = 8
"""Calls, inner and outer, that are told of a stack which lies in a page."""
_LEFT_OUT = ("<frozen", "/dream/launch/child.py", "/dream/launch/forks/")


@final
class StackWriter:
    """Writes this rank's Python stack when it is asked to. fd: of the memory that its stacks are
    written to."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("dream-stacks", os.MFD_CLOEXEC)
        self._number = 0

    @property
    def number(self) -> int:
        """The signal to send; 0 where none is free. Another one, where the script has taken the
        former: that is its own from then on."""
        if not self._number or signal.getsignal(self._number) is not signal.SIG_DFL:
            self._number = _free_signal()
            if self._number:
                faulthandler.register(self._number, self.fd, all_threads=False)
        return self._number


def _free_signal() -> int:
    """Return a real-time signal that neither Python nor a library listens to."""
    caught = _caught(os.getpid())
    for number in range(signal.SIGRTMAX - 2, signal.SIGRTMIN + 2, -1):
        if signal.getsignal(number) is signal.SIG_DFL and not caught >> (number - 1) & 1:
            return number
    return 0


def ask(pid: int, number: int, fd: int) -> list[str]:
    """Return the stack of a process whose signal and memory these are, innermost call first; empty
    where it does not answer. Never sent to a process that would end of it."""
    if not number or not _caught(pid) >> (number - 1) & 1:
        return []
    start = os.fstat(fd).st_size
    try:
        os.kill(pid, number)
    except OSError:
        return []
    end, size = time.monotonic() + _SECONDS, start
    while time.monotonic() < end:
        time.sleep(_NAP)
        before, size = size, os.fstat(fd).st_size
        if size == before > start:
            break
    return _lines(os.pread(fd, size - start, start).decode(errors="replace"))


def own(frame: FrameType | None) -> list[str]:
    """Return the stack of a thread of this process, as faulthandler writes it."""
    lines = []
    while frame is not None:
        code = frame.f_code
        lines.append(f'File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return _kept(lines)


def shortened(stack: Sequence[str]) -> tuple[str, ...]:
    """Leave out what is in the middle of a deep one."""
    return tuple(stack) if len(stack) <= 2 * _ENDS else (*stack[:_ENDS], *stack[-_ENDS:])


def _lines(text: str) -> list[str]:
    """Of the last one: two may have asked at one time."""
    last = text.rpartition("(most recent call first):")[2]
    return _kept(line.strip() for line in last.splitlines() if line.startswith("  File "))


def _kept(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if not any(words in line for words in _LEFT_OUT)]


def _caught(pid: int) -> int:
    """Return the signals that a process handles, a bit each."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line for line in text.splitlines() if line.startswith("SigCgt:")]
    return int(found[0].split()[1], 16) if found else 0
