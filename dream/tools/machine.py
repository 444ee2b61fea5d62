"""Measure the machine and this process: cores, load, and who else wanted the machine meanwhile;
memory, and bytes sent over sockets."""

from __future__ import annotations

import os
import platform
import socket
import struct
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import monotonic
from typing import final

from dream.launch.joined.threads import cores

_STAT = Path("/proc/stat")
_IDLE = slice(3, 5)
"""Idle, and waiting for a disk, among a processor's times."""
_SHARE = 0.1
"""Of the cores, taken by others: more is busy."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that a table was read on, and how busy it was.

    cores: that we may use; load: processes that wanted one before the first cell started, the
    mean over a minute; others: cores that other programs kept busy while cells ran, the mean;
    None where the system does not tell.
    """

    cores: int
    load: float
    others: float | None = None

    @property
    def busy(self) -> str:
        """Why the speeds are not to be trusted; empty where they are."""
        if self.load > self.cores / 2:
            return f"load {self.load:.1f} before the first row"
        if self.others is not None and self.others > _SHARE * self.cores:
            return f"other programs took {self.others:.1f} of {self.cores} cores meanwhile"
        return ""

    @property
    def figures(self) -> dict[str, object]:
        """For programs."""
        here = {"system": platform.system(), "arch": platform.machine()}
        return asdict(self) | {"busy": self.busy or None} | here


@final
class LoadWatch:
    """Watches who else wants the machine, from the moment it is made."""

    def __init__(self) -> None:
        self._before = Machine(cores(), os.getloadavg()[0])
        self._clock, self._busy, self._ours = monotonic(), _busy(), _ours()

    def seen(self) -> Machine:
        """Return the machine, and how busy others kept it until now."""
        busy, seconds = _busy(), monotonic() - self._clock
        if busy is None or self._busy is None or seconds <= 0:
            return self._before
        others = (busy - self._busy - (_ours() - self._ours)) / seconds
        return replace(self._before, others=max(0.0, others))


def _busy() -> float | None:
    """Processor seconds so far, of all programs on this machine. None where there are other
    processors than we may use, on which others may be busy as they like."""
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:
        return None
    if sum(line[3:4].isdigit() for line in lines if line.startswith("cpu")) != cores():
        return None
    ticks = [int(text) for text in lines[0].split()[1:9]]
    return (sum(ticks) - sum(ticks[_IDLE])) / os.sysconf("SC_CLK_TCK")


def _ours() -> float:
    """Processor seconds of this process and of those it has seen end."""
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


_BYTES_SENT = 200
"""Where `tcpi_bytes_sent`, a u64, lies in the kernel's `struct tcp_info` (Linux 4.19 and later)."""
_DESCRIPTORS = Path("/proc/self/fd")


def bytes_sent() -> int | None:
    """Over all TCP sockets that are open now, as Linux counts them for each: those of every
    transport, whatever library holds it. What goes through shared memory is in no socket. None
    where the system does not count."""
    if not sys.platform.startswith("linux") or not _DESCRIPTORS.is_dir():
        return None
    found = [_sent(int(entry)) for entry in os.listdir(_DESCRIPTORS)]  # noqa: PTH208
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(found) else None


def peak_bytes() -> int:
    """The largest resident size this process has had."""
    peak = getrusage(RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """The resident size of this process now; where the system does not tell, its largest."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_bytes()
    return pages * os.sysconf("SC_PAGE_SIZE")


def _sent(descriptor: int) -> int | None:
    """0 for what is no TCP socket, or closed meanwhile."""
    try:
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):  # noqa: PTH115
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6):
                return 0
            facts = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return 0
    if len(facts) < _BYTES_SENT + 8:
        return None
    return int(struct.unpack_from("Q", facts, _BYTES_SENT)[0])
